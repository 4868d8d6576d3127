import { h } from "./dom.js";
export const eventsPage = () => h("div.page", {}, h("h1", {}, "events"));
