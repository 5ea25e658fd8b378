// Runs before the page is painted, so that a chosen theme does not flash.
(() => {
  let theme = "";
  try {
    theme = JSON.parse(localStorage.getItem("nplt.theme") ?? '""');
  } catch {
    // the browser's storage is turned off
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
