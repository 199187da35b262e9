"use strict";
// The search that goes on in steps until it has found enough, and the live tail.

const TAIL_EVERY_MS = 1000;
const MAX_TAIL_ROWS = 500;

async function nextStep(place, most, signal) {
  const url = new URL(place.dataset.step, location.href);
  url.searchParams.set("at", place.dataset.at);
  url.searchParams.set("limit", most);
  const response = await fetch(url, { headers: { Accept: "application/json" }, signal });
  if (!response.ok) throw new Error(await response.text());
  const step = await response.json();
  place.dataset.at = step.at;
  return step;
}

function sizeText(bytes) {
  for (const unit of ["bytes", "KiB", "MiB", "GiB"]) {
    if (bytes < 1024) return `${unit === "bytes" ? bytes : bytes.toFixed(1)} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(1)} TiB`;
}

async function search(place) {
  const [status, progress, cancel, next] = ["status", "progress", "cancel", "next"].map((id) => document.getElementById(id));
  const data = place.dataset;
  const state = { found: +data.found, read: +data.read, bytes: +data.bytes, remaining: +data.remaining, isDone: "done" in data };
  const total = state.remaining + state.read;
  const most = +data.most;
  const ending = new AbortController();
  const stop = () => ending.abort();
  const onEscape = (event) => { if (event.key === "Escape") stop(); };
  cancel.addEventListener("click", stop);
  document.addEventListener("keydown", onEscape);
  progress.hidden = cancel.hidden = false;
  next.hidden = true;
  let trouble = "";
  try {
    while (!state.isDone && state.found < most) {
      const step = await nextStep(place, most - state.found, ending.signal);
      document.getElementById("rows").insertAdjacentHTML("beforeend", step.rows);
      state.found += step.found;
      state.read += step.read;
      state.bytes += step.read_bytes;
      state.remaining = step.remaining;
      state.isDone = step.is_done;
      progress.value = total ? 1 - step.remaining / Math.max(total, step.remaining) : 1;
      status.textContent = `${state.found} found in ${state.read.toLocaleString("en")} records (${sizeText(state.bytes)}); ${step.remaining.toLocaleString("en")} offsets left`;
    }
  } catch (error) {
    trouble = error.name === "AbortError" ? "; cancelled" : `; ${error.message}`;
  }
  document.removeEventListener("keydown", onEscape);
  progress.hidden = cancel.hidden = true;
  next.hidden = state.isDone;
  const link = new URL(data.next, location.href);
  link.searchParams.set("at", data.at);
  next.href = link;
  if (trouble) next.textContent = "Go on";
  const rest = state.isDone ? "; all is read" : `; ${state.remaining.toLocaleString("en")} offsets left`;
  status.textContent = `${state.found} found in ${state.read.toLocaleString("en")} records (${sizeText(state.bytes)})${trouble || rest}`;
}

async function tail(place) {
  const status = document.getElementById("status");
  const pause = document.getElementById("pause");
  const rows = document.getElementById("rows");
  let isPaused = false;
  let seen = 0;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
  });
  for (;;) {
    let isDone = true;
    if (!isPaused && !document.hidden) {
      try {
        const step = await nextStep(place, 200);
        isDone = step.is_done;
        seen += step.found;
        for (const row of rows.querySelectorAll("tr.new")) row.classList.remove("new");
        const body = document.createElement("tbody");
        body.innerHTML = step.rows;
        // The newest on top.
        for (const row of [...body.rows]) { row.classList.add("new"); rows.prepend(row); }
        while (rows.rows.length > MAX_TAIL_ROWS) rows.lastElementChild.remove();
        status.textContent = seen ? `${seen.toLocaleString("en")} records since this page was opened` : "Waiting for records.";
      } catch (error) {
        status.textContent = `${error.message} Trying again.`;
      }
    }
    // What has arrived meanwhile is read at once.
    if (isDone) await new Promise((resolve) => { setTimeout(resolve, TAIL_EVERY_MS); });
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("search");
  if (place && "filtered" in place.dataset && !("done" in place.dataset)) search(place);
  const tailed = document.getElementById("tail");
  if (tailed) tail(tailed);
});
