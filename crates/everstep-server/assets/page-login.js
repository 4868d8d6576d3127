// The page where somebody logs in with a token. The token is sent once and kept nowhere here: the
// server answers with a cookie that scripts cannot read.

import { h, replace } from "./dom.js";
import { icon, logo } from "./icons.js";
import { login, session } from "./session.js";

export function loginPage({ query, router }) {
  const problem = h("div.form-problem", { role: "alert" });
  const input = h("input#token", { type: "password", name: "token", autocomplete: "current-password", "aria-required": "true", autofocus: true, spellcheck: "false" });
  const send = h("button.primary", { type: "submit" }, "Log in");
  const done = () => {
    router.frame();
    const to = query.get("to") ?? "";
    // Only addresses of the dashboard itself: `//elsewhere` would lead away.
    router.go(/^\/(?![/\\])/.test(to) && !to.startsWith("/login") ? to : "/runs", { replace: true });
  };
  const { role, login_required } = session();
  return h("div.login", {}, h("div.login-card", {},
    h("div.brand", {}, logo(30), h("span", {}, "Everstep")),
    h("h1", {}, "Log in"),
    role && !login_required && h("p.muted", {}, "This server needs no token. ", h("a", { href: "/runs" }, "Go to the runs")),
    h("form", { novalidate: true, onsubmit: async (event) => {
      event.preventDefault();
      replace(problem);
      if (!input.value.trim()) {
        replace(problem, icon("warning"), "Enter a token first");
        return input.focus();
      }
      send.disabled = true;
      try {
        await login(input.value.trim());
        done();
      } catch (error) {
        replace(problem, icon("warning"), h("div", {}, h("strong", {}, error.message), error.hint && h("p", {}, error.hint)));
        input.select();
      } finally {
        send.disabled = false;
      }
    } },
      h("div.field", {}, h("label", { for: "token" }, "Token"), input, h("p.field-hint", {}, "Whoever runs this server can give you one, with the role read, operate or admin.")),
      problem, send)));
}
