// SPDX-License-Identifier: MIT
// The theme that was chosen in this browser. A script of its own, before the page is painted, so that nothing flashes.
(function setTheme() {
  try {
    const theme = localStorage.getItem("weft.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch { /* a browser without storage: the system's theme */
  }
})();
