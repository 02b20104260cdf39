// Labels by clients on a canvas: a cell per label and client, arrow keys or hover read it out. Counts stand in cells that hold them.
figure({ page: "run", section: "clients", order: 4, when: (d) => d.labels, still: true, block: (d) => heatmap(d.labels, d.clients) });
const strength = (value, most) => (value ? 0.12 + 0.88 * Math.sqrt(value / most) : 0); // of a cell's colour: few records are seen too
function scaleBlock(most) {
  const marks = [...new Set([0, 0.25, 0.5, 1].map((share) => Math.round(share * most)))];
  return el("ul", { class: "legend scale", "aria-label": "Records by colour" }, marks.map((value) => {
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = value ? `rgba(var(--heat),${strength(value, most).toFixed(3)})` : "var(--heat-bg)";
    return el("li", { class: "item" }, swatch, el("span", { text: `${whole(value)}${value === most ? " records" : ""}` }));
  }));
}
function heatmap(labels, names) {
  const rows = labels.classes.length, columns = labels.counts.length, most = Math.max(1, ...labels.counts.map((column) => Math.max(...column)));
  const canvas = el("canvas", { tabindex: "0", role: "img", "data-chart": "labels", "aria-label": describe() });
  const out = el("output", { "aria-live": "polite", "aria-label": "Value read out of labels by clients" });
  const name = (column) => labels.together > 1
    ? `clients ${whole(column * labels.together + 1)} to ${whole(Math.min((column + 1) * labels.together, names.count))}`
    : names.names ? names.names[column] : `client ${whole(column + 1)}`;
  const brief = (column) => { const text = labels.together > 1 ? `${whole(column * labels.together + 1)}–${whole(Math.min((column + 1) * labels.together, names.count))}` : name(column); return text.length > 14 ? `${text.slice(0, 13)}…` : text; };
  let at = null, geometry = null;
  function describe() {
    const total = labels.counts.reduce((sum, column) => sum + column.reduce((a, b) => a + b, 0), 0);
    return `Heat map of ${plural(rows, "label")} by ${plural(columns, labels.together > 1 ? "group" : "client")}: ${plural(total, "record")}; the largest cell holds ${whole(most)}. Use the arrow keys to read cells.`;
  }
  function draw() {
    const width = canvas.clientWidth || 480, ratio = window.devicePixelRatio || 1;
    const margin = Math.min(110, 12 + 7 * Math.max(...labels.classes.map((label) => Math.min(label.length, 14))));
    const cell = Math.max(4, Math.min(26, 320 / rows)), wide = (width - margin) / columns;
    const called = labels.counts.map((_, c) => brief(c)), longest = Math.max(...called.map((text) => text.length)), flat = 7 * longest + 8 < wide;
    const foot = flat ? 24 : Math.min(96, 14 + 6.2 * longest), height = Math.ceil(rows * cell + foot);
    canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
    const g = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--heat");
    g.scale(ratio, ratio);
    geometry = { margin, wide, cell };
    g.fillStyle = style.getPropertyValue("--heat-bg"); g.fillRect(margin, 0, width - margin, rows * cell);
    const gap = wide > 6 ? 1 : 0;
    for (let c = 0; c < columns; c++) for (let r = 0; r < rows; r++) {
      const value = labels.counts[c][r];
      if (!value) continue;
      g.fillStyle = `rgba(${ink},${strength(value, most).toFixed(3)})`;
      g.fillRect(margin + c * wide, r * cell, Math.max(wide - gap, 0.6), cell - (cell > 6 ? 1 : 0));
    }
    if (cell >= 15 && wide >= 12 + 7 * String(most).length) {
      g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle"; g.textAlign = "center";
      for (let c = 0; c < columns; c++) for (let r = 0; r < rows; r++) {
        const value = labels.counts[c][r];
        g.fillStyle = style.getPropertyValue(strength(value, most) > 0.55 ? "--heat-ink" : "--ink");
        g.fillText(String(value), margin + (c + 0.5) * wide, r * cell + cell / 2);
      }
    }
    g.fillStyle = style.getPropertyValue("--soft"); g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle"; g.textAlign = "right";
    const every = Math.ceil(14 / cell);
    labels.classes.forEach((label, r) => { if (r % every === 0) g.fillText(label.length > 14 ? `${label.slice(0, 13)}…` : label, margin - 6, r * cell + cell / 2); });
    const apart = Math.ceil((flat ? 7 * longest + 8 : 15) / wide);
    called.forEach((text, c) => {
      if (c % apart) return;
      g.save();
      g.translate(margin + (c + 0.5) * wide, rows * cell + (flat ? 13 : 6));
      if (!flat) g.rotate(-Math.PI / 2);
      g.textAlign = flat ? "center" : "right";
      g.fillText(text, 0, 0);
      g.restore();
    });
    if (at) {
      g.strokeStyle = style.getPropertyValue("--ink"); g.lineWidth = 2;
      g.strokeRect(margin + at[0] * wide - 0.5, at[1] * cell - 0.5, Math.max(wide, 3), cell);
    }
  }
  function move(column, row) {
    if (column === null) { at = null; out.textContent = ""; draw(); return; }
    at = [Math.min(columns - 1, Math.max(0, column)), Math.min(rows - 1, Math.max(0, row))];
    out.textContent = `${name(at[0])}, label ${labels.classes[at[1]]}: ${plural(labels.counts[at[0]][at[1]], "record")}`;
    draw();
  }
  canvas.addEventListener("pointermove", (event) => {
    const place = canvas.getBoundingClientRect(), x = event.clientX - place.left - geometry.margin, y = event.clientY - place.top;
    if (x >= 0 && y < rows * geometry.cell) move(Math.floor(x / geometry.wide), Math.floor(y / geometry.cell));
  });
  canvas.addEventListener("pointerleave", () => { if (document.activeElement !== canvas) move(null); });
  canvas.addEventListener("focus", () => { if (!at) move(0, 0); });
  canvas.addEventListener("blur", () => move(null));
  canvas.addEventListener("keydown", (event) => {
    const far = Math.max(1, Math.round(columns / 10)), now = at || [0, 0];
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], PageUp: [far, 0], PageDown: [-far, 0], Home: [-columns, 0], End: [columns, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    move(now[0] + step[0], now[1] + step[1]);
  });
  follow(canvas, draw);
  const heads = [{ name: labels.together > 1 ? "clients" : "client" }, ...labels.classes.map((label) => ({ name: label, number: true }))];
  return el("figure", { class: "card wide" }, el("figcaption", {}, el("h3", { text: "Labels × clients" }),
    el("p", { class: "note" }, el("span", { class: "raw", text: "from raw data: not covered by ε" }), " True counts, known to the researcher of a simulation only. A column per client, a row per label; the stronger a cell’s colour, the more records.")),
  canvas, out, scaleBlock(most), table("Labels by clients", heads, () => labels.counts.map((column, i) => [name(i), ...column.map(whole)])));
}
