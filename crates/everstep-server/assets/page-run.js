import { h } from "./dom.js";
export const runPage = () => h("div.page", {}, h("h1", {}, "run"));
