import { h } from "./dom.js";
export const lettersPage = () => h("div.page", {}, h("h1", {}, "letters"));
