import { h } from "./dom.js";
export const chartsPage = () => h("div.page", {}, h("h1", {}, "charts"));
