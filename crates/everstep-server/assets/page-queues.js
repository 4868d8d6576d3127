import { h } from "./dom.js";
export const queuesPage = () => h("div.page", {}, h("h1", {}, "queues"));
