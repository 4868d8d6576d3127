// Who is logged in and what they may do. The server decides; this only spares people a click that
// would be refused, and tells them why.

import { get, post, remove, setCsrf } from "./api.js";

let current = { login_required: false, store: "", version: "" };

export const session = () => current;

export async function loadSession() {
  return keep(await get("/session"));
}

export async function login(token) {
  return keep(await post("/session", { token }));
}

export async function logout() {
  await remove("/session");
  return loadSession();
}

const ADMIN = new Set(["delete", "bulk", "move", "evict", "audit", "tokens"]);

const RANK = ["read", "operate", "admin"];

/** Why the session may not do this, or nothing if it may. */
export function refusal(action) {
  if (!action) return undefined;
  const needed = ADMIN.has(action) ? "admin" : "operate";
  // The server's own list wins; a server that gives none goes by the role.
  const may = current.can?.includes(action) ?? RANK.indexOf(current.role) >= RANK.indexOf(needed);
  if (may) return undefined;
  return `This needs the role ${needed}; you have ${current.role ?? "none"}.`;
}

function keep(session) {
  current = session;
  setCsrf(current.csrf);
  return current;
}
