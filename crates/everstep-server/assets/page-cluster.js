import { h } from "./dom.js";
export const clusterPage = () => h("div.page", {}, h("h1", {}, "cluster"));
