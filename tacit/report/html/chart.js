// Line and point charts as SVG: hover or arrow keys read values out, the legend turns lines on and off.
function ticks(low, high, count, log) {
  if (log) {
    const found = [];
    const span = Math.log10(high / low);
    const steps = span > 4 ? [1] : span > 1.6 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const s of steps) { const t = Number((s * 10 ** e).toPrecision(2)); if (t >= low * 0.999 && t <= high * 1.001) found.push(t); }
    return found;
  }
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(10)));
  return found;
}
// of a small picture four, where they have room: of two there is often one
const tickCount = (wide) => Math.max(Math.min(4, Math.floor(wide / 36)), Math.floor(wide / 90));
function marker(index, x, y, size, fill) {
  const s = size, shapes = [
    `M${x - s},${y}a${s},${s} 0 1,0 ${2 * s},0a${s},${s} 0 1,0 ${-2 * s},0`,
    `M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}z`,
    `M${x},${y - s * 1.2}L${x + s * 1.15},${y + s}H${x - s * 1.15}z`,
    `M${x},${y - s * 1.3}L${x + s * 1.3},${y}L${x},${y + s * 1.3}L${x - s * 1.3},${y}z`];
  return svg("path", { d: shapes[index % 4], fill, stroke: "var(--card)", "stroke-width": 1 });
}
function values(series) {
  const known = (list) => list.filter((v) => v !== null && v !== undefined);
  const drawn = series.flatMap((s) => known([...s.y, ...(s.low || []), ...(s.high || [])])), most = Math.max(0, ...drawn);
  // a limit far above everything spent would flatten the lines: the legend names it all the same
  return drawn.concat(known(series.map((s) => s.limit)).filter((limit) => limit <= 2.5 * most));
}

function scaleOf(spec, series, width, height, box) {
  let all = values(series), xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  if (spec.log) all = all.filter((v) => v > 0);
  let low = Math.min(...all), high = Math.max(...all);
  if (!all.length) { low = 0; high = 1; }
  if (spec.log) { low /= 1.15; high *= 1.15; }
  else {
    if (spec.zero || low > 0 && low < 0.35 * high) low = Math.min(0, low);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    if (low !== 0) low -= room;
    high += room;
    if (spec.top !== undefined) high = Math.min(high, Math.max(spec.top, low + 1e-9));
    if (spec.bottom !== undefined) low = Math.max(low, spec.bottom);
  }
  let left = series.some((s) => s.bound) ? Math.min(1, xs[0]) : xs[0], right = xs[xs.length - 1];
  if (spec.xlog) { left /= 1.25; right *= 1.25; }
  else if (left === right) { left -= 0.5; right += 0.5; }
  const fx = spec.xlog ? Math.log : (v) => v, fy = spec.log ? Math.log : (v) => v;
  const clampY = (v) => Math.min(Math.max(v, low), high);
  return { xs, low, high, left, right,
    x: (v) => box.left + (fx(v) - fx(left)) / (fx(right) - fx(left)) * (width - box.left - box.right),
    y: (v) => height - box.bottom - (fy(clampY(v)) - fy(low)) / (fy(high) - fy(low)) * (height - box.top - box.bottom) };
}
function pathOf(s, scale) {
  let path = "", open = false;
  s.y.forEach((v, i) => {
    if (v === null || v === undefined) return; // a round that was not tested: the line goes on to the next that was
    const x = scale.x(s.x[i]).toFixed(1), y = scale.y(v).toFixed(1);
    // a bound between two marks is the later one: up first, then across
    path += !open ? (s.bound ? `M${scale.x(i ? s.x[i - 1] : 1).toFixed(1)},${y}H${x}` : `M${x},${y}`) : s.bound ? `V${y}H${x}` : `L${x},${y}`;
    open = true;
  });
  return path;
}
function bandOf(s, scale) {
  const edge = (list) => list.flatMap((v, i) => (v === null || v === undefined ? [] : [`${scale.x(s.x[i]).toFixed(1)},${scale.y(v).toFixed(1)}`]));
  const up = edge(s.high), down = edge(s.low).reverse();
  return `M${up.join("L")}L${down.join("L")}z`;
}
function valueAt(s, x, points) {
  if (points) return s.x[0] === x ? 0 : -1;
  let found = -1;
  for (let i = 0; i < s.x.length; i++) {
    if (s.bound) { if (s.x[i] >= x) return i; }
    else if (s.x[i] <= x) found = i;
  }
  return s.bound ? s.x.length - 1 : found;
}
function summaryOf(spec) {
  const parts = spec.series.filter((s) => s.y.length).slice(0, 12).map((s) => {
    const last = s.y[s.y.length - 1];
    return `${s.name}: ${spec.points ? "" : "ends at "}${spec.format(last)}${s.limit ? `, limit ${limitText(s.limit)}` : ""}`;
  });
  return `${parts.join("; ")}. ${spec.points ? "" : `By ${spec.xLabel}. `}Use the arrow keys to read values.`;
}

// `spec`: `title`, `note` (a sentence below it), `format` (of a value), `tick` (of an axis value), `zero` (the axis begins there), `top`
// and `bottom` (it ends there at most), `log`, `points` (markers in place of lines), `wide`, `height`; `xLabel`, `xName`, `xFormat`,
// `xTick`, `xlog`, `real` for the other axis, which is the round unless said; `raw`: some number is made of raw data without noise, and
// no ε covers it (name it in `foot`, blocks.js, too). `series`: {name, x, y, index (of its colour)}, and where there are any `low` and
// `high` (a band), `limit` (a dotted line), `bound` (each y holds for all x up to its own), `colour`, `wide`.
// A line of `several` takes `level` ([name, value], one more line), `alike` (equal lines are one), `only` (which entries) and `bound` besides.
function chart(spec) {
  const hidden = new Set(), titleId = fresh("title"), descId = fresh("desc");
  const plot = el("div", { class: "plot" }), out = el("output", { "aria-live": "polite", "aria-label": `Value read out of ${spec.title}` });
  const legend = el("ul", { class: "legend", "aria-label": `Legend of ${spec.title}` });
  let cursor = null, scale = null, layer = null, picture = null;
  const shown = () => spec.series.filter((s) => !hidden.has(s.name) && s.x.length);

  function draw() {
    const width = Math.max(240, plot.clientWidth || 480), height = spec.height || 240, focus = picture && document.activeElement === picture, kept = cursor;
    const list = shown().length ? shown() : spec.series.filter((s) => s.x.length);
    const box = { left: 48, right: 14, top: 12, bottom: 36 };
    if (!list.length) { plot.replaceChildren(el("p", { class: "note", text: "Nothing to show yet." })); return; }
    scale = scaleOf(spec, list, width, height, box);
    const ys = ticks(scale.low, scale.high, 5, spec.log), tick = spec.tick || ((v) => digits(v));
    box.left = Math.max(30, 10 + 6.7 * Math.max(...ys.map((v) => tick(v).length)));
    scale = scaleOf(spec, list, width, height, box);
    const xTick = spec.xTick || whole, widest = 8 * Math.max(xTick(scale.right).length, xTick(scale.left).length) + 14;
    let xsTicks = ticks(scale.left, scale.right, Math.min(8, Math.floor((width - box.left) / widest)), spec.xlog);
    if (!spec.xlog && !spec.points && !spec.real) xsTicks = xsTicks.filter((v) => Number.isInteger(v));
    let lastX = -1e9;
    xsTicks = xsTicks.filter((v) => { const x = scale.x(v); if (x - lastX < widest * 0.8) return false; lastX = x; return true; });
    picture = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: "0", "aria-labelledby": `${titleId} ${descId}`, "data-chart": spec.title },
      svg("title", { id: titleId, text: spec.title }), svg("desc", { id: descId, text: summaryOf(spec) }),
      ys.map((v) => [svg("line", { class: "gridline", x1: box.left, x2: width - box.right, y1: scale.y(v), y2: scale.y(v) }),
        svg("text", { x: box.left - 6, y: scale.y(v) + 4, "text-anchor": "end", text: tick(v) })]),
      svg("line", { class: "axis", x1: box.left, x2: width - box.right, y1: height - box.bottom, y2: height - box.bottom }),
      xsTicks.map((v) => svg("text", { x: scale.x(v), y: height - box.bottom + 16, "text-anchor": "middle", text: xTick(v) })),
      svg("text", { x: (box.left + width - box.right) / 2, y: height - 4, "text-anchor": "middle", text: spec.xLabel }),
      shown().map((s) => lineOf(s)));
    layer = svg("g", { "aria-hidden": "true" });
    picture.append(layer);
    picture.addEventListener("pointermove", (event) => point(event.clientX));
    picture.addEventListener("pointerdown", (event) => point(event.clientX));
    picture.addEventListener("pointerleave", () => { if (document.activeElement !== picture) move(null); });
    picture.addEventListener("keydown", keys);
    picture.addEventListener("focus", () => { if (cursor === null && scale.xs.length) move(scale.xs.length - 1); });
    picture.addEventListener("blur", () => move(null));
    plot.replaceChildren(picture);
    if (focus) picture.focus({ preventScroll: true });
    if (kept !== null) move(Math.min(kept, scale.xs.length - 1)); // drawing anew must not lose the reader's place
  }
  function lineOf(s) {
    const ink = s.colour || colour(s.index), parts = [];
    if (s.low && s.high && s.x.length > 1 && !spec.points) parts.push(svg("path", { d: bandOf(s, scale), fill: ink, opacity: 0.14 }));
    if (s.limit && s.limit <= scale.high) parts.push(svg("line", { x1: scale.x(scale.left), x2: scale.x(scale.right), y1: scale.y(s.limit), y2: scale.y(s.limit), stroke: ink, "stroke-width": 1, "stroke-dasharray": "1 4", opacity: 0.9 }));
    if (spec.points && s.low && s.high) parts.push(svg("path", { d: `M${scale.x(s.x[0])},${scale.y(s.low[0])}V${scale.y(s.high[0])}`, stroke: ink, "stroke-width": 1.6 }));
    if (!spec.points) parts.push(svg("path", { d: pathOf(s, scale), fill: "none", stroke: ink, "stroke-width": s.wide || 2, "stroke-linejoin": "round", "stroke-dasharray": dash(s.index) }));
    const last = s.y.length - 1;
    if (s.y[last] !== null && s.y[last] !== undefined) parts.push(marker(s.index, scale.x(s.x[last]), scale.y(s.y[last]), spec.points ? 5.5 : 4, ink));
    return parts;
  }
  function point(clientX) {
    const place = picture.getBoundingClientRect(), x = (clientX - place.left) * (picture.viewBox.baseVal.width / place.width);
    let best = 0;
    scale.xs.forEach((v, i) => { if (Math.abs(scale.x(v) - x) < Math.abs(scale.x(scale.xs[best]) - x)) best = i; });
    move(best);
  }
  function keys(event) {
    const last = scale.xs.length - 1, far = Math.max(1, Math.round(last / 10)), now = cursor === null ? last : cursor;
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, PageUp: now + far, PageDown: now - far, Home: 0, End: last }[event.key];
    if (event.key === "Escape") { move(null); return; }
    if (to === undefined) return;
    event.preventDefault();
    move(Math.min(last, Math.max(0, to)));
  }
  function move(to) {
    cursor = to;
    layer.replaceChildren();
    legend.querySelectorAll(".value").forEach((node) => { node.textContent = ""; });
    if (to === null) { out.textContent = ""; return; }
    const x = scale.xs[to], said = [];
    layer.append(svg("line", { class: "cursor", x1: scale.x(x), x2: scale.x(x), y1: 8, y2: (spec.height || 240) - 36 }));
    for (const s of shown()) {
      const i = valueAt(s, x, spec.points);
      if (i < 0 || s.y[i] === null || s.y[i] === undefined) continue;
      layer.append(marker(s.index, scale.x(spec.points ? s.x[i] : Math.min(x, s.x[s.x.length - 1])), scale.y(s.y[i]), 5, s.colour || colour(s.index)));
      const value = `${s.bound ? "≤ " : ""}${spec.format(s.y[i])}${s.low && s.high ? ` (${spec.format(s.low[i])} to ${spec.format(s.high[i])})` : ""}`;
      said.push(`${s.name} ${value}`);
      const node = [...legend.querySelectorAll("[data-series]")].find((item) => item.dataset.series === s.name);
      if (node) node.querySelector(".value").textContent = value;
    }
    out.textContent = `${spec.xName || spec.xLabel} ${(spec.xFormat || whole)(x)}: ${said.length > 4 ? "values stand in the legend" : said.join(", ")}`;
    picture.setAttribute("aria-label", said.length > 4 ? `${spec.title}. ${spec.xName || spec.xLabel} ${(spec.xFormat || whole)(x)}: ${said.join(", ")}` : spec.title);
  }
  function key() {
    legend.replaceChildren(...spec.series.map((s) => {
      const ink = s.colour || colour(s.index);
      const sample = svg("svg", { width: 26, height: 12, "aria-hidden": "true", focusable: "false" },
        spec.points ? null : svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, stroke: ink, "stroke-width": 2.4, "stroke-dasharray": dash(s.index) }), marker(s.index, 13, 6, 4, ink));
      const inside = [sample, el("span", { text: s.name }), el("span", { class: "value" })];
      if (spec.series.length === 1) return el("li", { class: "item", "data-series": s.name }, inside);
      const button = el("button", { type: "button", "aria-pressed": hidden.has(s.name) ? "false" : "true", "data-series": s.name }, inside);
      button.addEventListener("click", () => {
        if (hidden.has(s.name)) hidden.delete(s.name); else hidden.add(s.name);
        button.setAttribute("aria-pressed", String(!hidden.has(s.name)));
        draw();
      });
      return el("li", {}, button);
    }));
  }
  const heads = () => [{ name: spec.xName || spec.xLabel }, ...spec.series.map((s) => ({ name: s.name, number: true }))];
  function rows() {
    const all = [...new Set(spec.series.flatMap((s) => s.x))].sort((a, b) => a - b);
    return all.map((x) => [(spec.xFormat || whole)(x), ...spec.series.map((s) => { const i = valueAt(s, x, spec.points); return i < 0 ? "–" : `${s.bound ? "≤ " : ""}${spec.format(s.y[i])}`; })]);
  }
  let asTable = table(spec.title, heads(), rows);
  const figure = el("figure", { class: `card${spec.wide ? " wide" : ""}` }, el("figcaption", {}, el("h3", { text: spec.title }),
    spec.note || spec.raw ? el("p", { class: "note" }, spec.raw ? el("span", { class: "raw", text: "from raw data: not covered by ε" }) : null, spec.raw && spec.note ? " " : null, spec.note || null) : null),
  plot, out, legend, asTable);
  key();
  follow(plot, draw);
  figure.update = (next) => {
    Object.assign(spec, next);
    key();
    draw();
    const fresher = table(spec.title, heads(), rows);
    if (asTable.open) { fresher.open = true; }
    asTable.replaceWith(fresher);
    asTable = fresher;
  };
  return figure;
}
