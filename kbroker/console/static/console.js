"use strict";
// Pages work without this script, except for tail and copy. It adds: a theme, shortcuts, search in tables, refresh.

const root = document.documentElement;
try {
  const theme = localStorage.getItem("theme");
  if (theme) root.dataset.theme = theme;
} catch { /* storage is blocked */ }

function toggleTheme() {
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* storage is blocked */ }
}

// Shows the rows of a table that contain a text.
function filterRows(input) {
  const text = input.value.toLowerCase();
  for (const row of document.querySelectorAll(`#${input.dataset.filter} tbody tr`)) {
    row.hidden = !row.textContent.toLowerCase().includes(text);
  }
}

// Replaces the content of a page every few seconds, while nobody writes or selects there.
function refreshPage() {
  const main = document.querySelector("main[data-refresh]");
  if (!main) return;
  setTimeout(async () => {
    const isBusy = document.hidden || !getSelection().isCollapsed ||
      (main.contains(document.activeElement) && document.activeElement.matches("textarea, select, input:not([type=search])"));
    if (!isBusy) {
      try {
        const response = await fetch(location.href, { headers: { Accept: "text/html" } });
        const text = await response.text();
        const next = new DOMParser().parseFromString(text, "text/html").querySelector("main");
        if (next) replaceMain(main, next);
      } catch {
        main.classList.add("stale"); // the console itself is away
      }
    }
    refreshPage();
  }, 1000 * Number(main.dataset.refresh));
}

function replaceMain(main, next) {
  const search = main.querySelector("input[type=search][data-filter]");
  const nextSearch = next.querySelector("input[type=search][data-filter]");
  if (search && nextSearch) nextSearch.replaceWith(search);
  const hadFocus = search === document.activeElement;
  main.replaceChildren(...next.childNodes);
  if ("refresh" in next.dataset) main.dataset.refresh = next.dataset.refresh; else delete main.dataset.refresh;
  main.classList.remove("stale");
  if (search && nextSearch) { filterRows(search); if (hadFocus) search.focus(); }
}

let isGoing = false;
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (isGoing) {
    isGoing = false;
    document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  if (event.key === "g") { isGoing = true; setTimeout(() => { isGoing = false; }, 1000); }
  else if (event.key === "d") toggleTheme();
  else if (event.key === "?") document.getElementById("shortcuts").showModal();
  else if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) { search.focus(); event.preventDefault(); }
  }
}

document.addEventListener("keydown", onKey);
document.addEventListener("input", (event) => { if (event.target.matches("[data-filter]")) filterRows(event.target); });
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.id === "theme") toggleTheme();
  else if (button.id === "help") document.getElementById("shortcuts").showModal();
  else if (button.dataset.copy !== undefined) {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  }
});
// A form that changes much: the question is in its data-confirm.
document.addEventListener("submit", (event) => {
  if (event.target.dataset.confirm && !confirm(event.target.dataset.confirm)) event.preventDefault();
});
document.addEventListener("DOMContentLoaded", refreshPage);
