"use strict";
(() => {
  const graph = document.getElementById("graph"), svg = document.getElementById("lines");
  const blocks = [...document.querySelectorAll(".block")];
  const byId = new Map(blocks.map((b) => [b.id.slice(1), b]));
  const lines = [];
  for (const block of blocks) {
    for (const id of block.dataset.needs.split(" ").filter(Boolean)) {
      const path = document.createElementNS(svg.namespaceURI, "path");
      svg.append(path);
      lines.push({ path, from: byId.get(id), to: block });
    }
  }
  const draw = () => {
    const at = graph.getBoundingClientRect();
    const boxes = new Map(blocks.map((b) => [b, b.getBoundingClientRect()]));
    svg.setAttribute("width", graph.scrollWidth);
    svg.setAttribute("height", graph.scrollHeight);
    for (const { path, from, to } of lines) {
      const a = boxes.get(from), b = boxes.get(to);
      if (!a.width || !b.width) { path.setAttribute("d", ""); continue; }
      const x1 = a.right - at.left, x2 = b.left - at.left;
      const y1 = a.top - at.top + Math.min(a.height / 2, 22), y2 = b.top - at.top + Math.min(b.height / 2, 22);
      const bend = Math.max(24, (x2 - x1) / 2);
      path.setAttribute("d", `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`);
    }
  };
  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };
  new ResizeObserver(later).observe(graph);
  graph.addEventListener("toggle", later, true);

  const near = (block) => {
    for (const b of blocks) b.classList.toggle("near", b === block);
    for (const { path, from, to } of lines) {
      const joined = block !== null && (from === block || to === block);
      path.classList.toggle("near", joined);
      if (joined) { from.classList.add("near"); to.classList.add("near"); }
    }
  };
  const blockOf = (e) => e.target instanceof Element ? e.target.closest(".block") : null;
  graph.addEventListener("pointerover", (e) => near(blockOf(e)));
  graph.addEventListener("pointerleave", () => near(null));
  graph.addEventListener("focusin", (e) => near(blockOf(e)));

  const nodes = [...document.querySelectorAll(".node")].map((n) => ({ n, text: n.textContent.toLowerCase() }));
  const folds = [...document.querySelectorAll(".fold")];
  const count = document.getElementById("count");
  document.getElementById("filter").addEventListener("input", (e) => {
    const words = e.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { n, text } of nodes) {
      const fits = words.every((w) => text.includes(w));
      n.classList.toggle("hidden", !fits);
      if (fits) shown++;
    }
    for (const b of blocks) b.classList.toggle("hidden", !b.querySelector(".node:not(.hidden)"));
    if (words.length) for (const f of folds) f.open = f.querySelector(".node:not(.hidden)") !== null;
    count.textContent = words.length ? `${shown} of ${nodes.length} shown` : "";
    later();
  });
  const foldAll = (open) => { for (const f of folds) f.open = open; };
  document.getElementById("open").addEventListener("click", () => foldAll(true));
  document.getElementById("close").addEventListener("click", () => foldAll(false));
  draw();
})();
