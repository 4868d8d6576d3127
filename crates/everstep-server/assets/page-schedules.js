import { h } from "./dom.js";
export const schedulesPage = () => h("div.page", {}, h("h1", {}, "schedules"));
