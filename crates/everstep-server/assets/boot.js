// Sets the remembered theme before the first paint, so that the page does not flash. It is the only
// script that is not a module, because modules run after the page is parsed; see theme.js for the rest.
try {
  const theme = localStorage.getItem("everstep.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden; then the theme follows the system.
}
