"use strict";
// The page works without this script. It keeps the page up to date, and reads the chart
// out. What comes from the server is parsed as a document in which no script runs, and
// only whole sections of it are taken over.
(() => {
  const every = 3000; // milliseconds between the end of an update and the next one
  const slowest = 30000;
  const sections = ["said", "numbers", "attention", "chart", "deliveries", "delivery", "fresh"];
  const byID = (id) => document.getElementById(id);

  let pause = every;
  let timer = 0;
  let stopped = false;
  let asking = null;

  const status = document.createElement("p");
  status.className = "unseen";
  status.setAttribute("aria-live", "polite");
  document.body.append(status);
  const say = (text) => {
    if (status.textContent !== text) status.textContent = text;
  };

  const button = document.createElement("button");
  button.type = "button";
  button.className = "pause";
  const label = () => {
    button.textContent = stopped ? "Go on updating" : "Pause updates";
  };
  button.addEventListener("click", () => {
    stopped = !stopped;
    label();
    later(0);
  });
  label();
  document.querySelector(".top").append(button);

  const later = (wait) => {
    clearTimeout(timer);
    if (!stopped && !document.hidden) timer = setTimeout(update, wait);
  };

  // What somebody is in the middle of is left alone.
  const inUse = (section) => {
    const focused = document.activeElement;
    const chosen = document.getSelection();
    return (
      section.querySelector("form.confirm") !== null ||
      (focused && focused !== document.body && section.contains(focused)) ||
      (chosen && !chosen.isCollapsed && section.contains(chosen.anchorNode))
    );
  };

  const attention = () => Array.from(document.querySelectorAll("#attention .choices li"), (li) => li.textContent).join(", ");

  // A form that is open asks about the key as it was shown. If that has changed, it says so:
  // to send it would do nothing.
  const compare = (fresh) => {
    const form = byID("confirm");
    const now = fresh.getElementById("delivery");
    if (!form || !now || form.dataset.over || now.dataset.seen === byID("delivery").dataset.seen) return;
    form.dataset.over = "yes";
    const state = now.querySelector(".about .state");
    const note = document.createElement("p");
    note.className = "notice";
    note.setAttribute("role", "alert");
    note.textContent = "The key has changed since this was asked. It is now: " + (state ? state.textContent : "unknown") + ". Leave it, and look again.";
    form.querySelector("button").disabled = true;
    form.prepend(note);
  };

  const takeOver = (fresh) => {
    const before = attention();
    compare(fresh);
    for (const id of sections) {
      const old = byID(id);
      const now = fresh.getElementById(id);
      if (!old || !now || old.isEqualNode(now) || inUse(old)) continue;
      const opened = old.querySelector("details[open]") !== null;
      const scrolled = old.scrollTop;
      const next = document.adoptNode(now);
      if (opened) next.querySelector("details").open = true;
      old.replaceWith(next);
      next.scrollTop = scrolled;
    }
    document.title = fresh.title;
    const after = attention();
    if (after !== before) say(after === "" ? "Nothing needs attention." : "Needs attention: " + after + ".");
    chart();
  };

  const update = async () => {
    if (asking) return;
    asking = new AbortController();
    const limit = setTimeout(() => asking.abort(), 20000);
    try {
      const query = new URLSearchParams(location.search);
      query.delete("do");
      query.set("part", "live");
      const got = await fetch("?" + query, { signal: asking.signal, credentials: "same-origin", redirect: "error" });
      const kind = got.headers.get("Content-Type") || "";
      if (!kind.startsWith("text/html")) throw new Error("no page");
      const fresh = new DOMParser().parseFromString(await got.text(), "text/html");
      if (!fresh.getElementById("numbers")) throw new Error("another page");
      takeOver(fresh);
      pause = got.ok || got.status === 404 ? every : Math.min(2 * pause, slowest);
    } catch {
      pause = Math.min(2 * pause, slowest);
      byID("fresh").textContent = "The page could not be brought up to date. It goes on trying.";
      say("The page could not be brought up to date.");
    } finally {
      clearTimeout(limit);
      asking = null;
      later(pause);
    }
  };
  document.addEventListener("visibilitychange", () => later(0));

  // The chart: the bar under the pointer, or chosen by the arrow keys, is read out from
  // the table that stands beside it.
  let chosen = -1;
  const read = (index) => {
    const rows = document.querySelectorAll("#chart-table tbody tr");
    const bars = document.querySelectorAll("#chart .bar");
    const readout = document.querySelector("#chart .readout");
    if (!readout || rows.length === 0) return;
    chosen = Math.max(0, Math.min(index, rows.length - 1));
    bars.forEach((bar, i) => bar.classList.toggle("chosen", i === chosen));
    const names = Array.from(document.querySelectorAll("#chart-table thead th.n"), (th) => th.textContent);
    const cells = Array.from(rows[chosen].querySelectorAll("td"), (td, i) => names[i] + " " + td.textContent);
    readout.textContent = rows[chosen].querySelector("th").textContent + ": " + cells.join(", ");
    readout.hidden = false;
  };
  const chart = () => {
    const plot = document.querySelector("#chart .plot");
    if (!plot || plot.dataset.read) return;
    plot.dataset.read = "yes";
    plot.tabIndex = 0;
    plot.setAttribute("role", "slider");
    plot.setAttribute("aria-label", "A step of time in the chart");
    const count = document.querySelectorAll("#chart .bar").length;
    plot.setAttribute("aria-valuemin", "1");
    plot.setAttribute("aria-valuemax", String(count));
    const go = (index) => {
      read(index);
      plot.setAttribute("aria-valuenow", String(chosen + 1));
      plot.setAttribute("aria-valuetext", document.querySelector("#chart .readout").textContent);
    };
    plot.setAttribute("aria-valuenow", String(count));
    plot.addEventListener("pointermove", (event) => {
      const box = plot.querySelector("svg").getBoundingClientRect();
      go(Math.floor(((event.clientX - box.left) / box.width) * count));
    });
    plot.addEventListener("focus", () => go(chosen < 0 ? count - 1 : chosen));
    plot.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -count, End: count };
      if (!(event.key in steps)) return;
      event.preventDefault();
      go(chosen + steps[event.key]);
    });
    if (chosen >= 0) go(chosen);
  };

  chart();
  later(every);
})();
