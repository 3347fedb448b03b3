"use strict";
// The page works without this script, which refreshes it. A new page is parsed as a document
// in which no script runs, and only whole sections of it are taken over.
(() => {
  const sections = ["said", "attention", "chart", "deliveries", "delivery", "fresh"];
  let paused = false;
  let timer = 0;

  // A view reads the stores: the longer it took, the longer the pause after it.
  const schedule = (took) => {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(refresh, Math.min(Math.max(3000, 10 * took), 60000));
  };

  // A section that somebody is using is left alone.
  const inUse = (section) => {
    const selection = document.getSelection();
    return (
      section.querySelector("form.confirm") !== null ||
      section.contains(document.activeElement) ||
      (!selection.isCollapsed && section.contains(selection.anchorNode))
    );
  };

  const takeOver = (fresh) => {
    for (const id of sections) {
      const old = document.getElementById(id);
      const next = fresh.getElementById(id);
      if (!old || !next || old.isEqualNode(next) || inUse(old)) continue;
      const open = old.querySelector("details[open]") !== null;
      const scrolled = old.scrollTop;
      old.replaceWith(document.adoptNode(next));
      if (open) next.querySelector("details").open = true;
      next.scrollTop = scrolled;
    }
    document.title = fresh.title;
  };

  const refresh = async () => {
    clearTimeout(timer);
    const began = Date.now();
    try {
      const query = new URLSearchParams(location.search);
      query.delete("do");
      const got = await fetch("?" + query, { signal: AbortSignal.timeout(20000), redirect: "error" });
      const fresh = new DOMParser().parseFromString(await got.text(), "text/html");
      if (!fresh.getElementById("attention")) throw new Error("another page");
      takeOver(fresh);
    } catch {
      document.getElementById("fresh").textContent = "The page could not be refreshed. It tries again.";
    }
    schedule(Date.now() - began);
  };

  const button = document.createElement("button");
  button.type = "button";
  button.className = "pause";
  button.textContent = "Pause";
  button.title = "Stop and resume the updates of this page";
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume" : "Pause";
    schedule(0);
  });
  document.querySelector(".top").append(button);
  document.addEventListener("visibilitychange", () => schedule(0));
  schedule(0);
})();
