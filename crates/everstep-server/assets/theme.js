// Light, dark, or as the system is; remembered. The first paint is boot.js.

const STORED = "everstep.theme";
export const THEMES = ["system", "light", "dark"];

export function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

export function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  try {
    if (name === "system") localStorage.removeItem(STORED);
    else localStorage.setItem(STORED, name);
  } catch {
    // Storage may be forbidden; then it holds until the page is left.
  }
}
