import { h } from "./dom.js";
export const auditPage = () => h("div.page", {}, h("h1", {}, "audit"));
