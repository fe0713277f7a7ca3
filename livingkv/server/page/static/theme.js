// Light, dark, or as the system has it: set before the page is painted, kept in this browser.
"use strict";
(() => {
  const root = document.documentElement;
  const names = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const order = ["", "light", "dark"];
  const stored = () => {
    try { return localStorage.getItem("theme") || ""; } catch { return ""; }
  };
  const show = (theme) => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    const button = document.getElementById("theme");
    if (button) { button.hidden = false; button.textContent = names[theme] || names[""]; }
  };
  show(stored());
  document.addEventListener("DOMContentLoaded", () => {
    show(stored());
    const button = document.getElementById("theme");
    if (!button) return;
    button.addEventListener("click", () => {
      const next = order[(order.indexOf(stored()) + 1) % order.length];
      try { localStorage.setItem("theme", next); } catch { /* it holds for this page */ }
      show(next);
      document.dispatchEvent(new Event("themed"));
    });
  });
})();
