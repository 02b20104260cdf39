// Estimates with their intervals on one axis, a row each; where zero matters it is drawn. What a row says stands in the table too.
function forest(spec) {
  const { rows, format } = spec, step = 26, plot = el("div", { class: "plot" });
  const all = rows.flatMap((row) => [row.value, ...row.interval]).concat(spec.zero ? [0] : []);
  const least = Math.min(...all), most = Math.max(...all), spare = 0.06 * (most - least) || 0.01, low = least - spare, high = most + spare;
  const words = (row) => `${row.name}: ${format(row.value)}${row.interval.length ? ` (${format(row.interval[0])} to ${format(row.interval[1])})` : ""}`;
  const said = `${spec.title}. ${rows.slice(0, 12).map(words).join("; ")}`;
  function draw() {
    const wide = Math.max(240, plot.clientWidth || 640), longest = 16 + 6.7 * Math.max(...rows.map((row) => row.name.length));
    // on a phone a name stands above its line
    const above = longest > 0.42 * wide, left = above ? 4 : longest, tall = (above ? 40 : step) * rows.length + 30;
    const x = (value) => left + 8 + ((value - low) / (high - low)) * (wide - left - 24), fits = Math.floor((wide - 12) / 6.7);
    const each = (row, i) => {
      const y = above ? 40 * i + 30 : step * i + 14, sure = row.sure !== false, ink = sure ? colour(0) : "var(--soft)";
      return [svg("text", { class: "over", x: above ? 4 : left - 4, y: above ? y - 14 : y + 4, "text-anchor": above ? "start" : "end", text: row.name.length > fits ? `${row.name.slice(0, fits - 1)}…` : row.name }),
        row.interval.length ? svg("path", { d: `M${x(row.interval[0])},${y}H${x(row.interval[1])}M${x(row.interval[0])},${y - 4}v8M${x(row.interval[1])},${y - 4}v8`, stroke: ink, "stroke-width": 2, fill: "none" }) : null,
        marker(0, x(row.value), y, 5, ink)];
    };
    plot.replaceChildren(svg("svg", { class: "chart", viewBox: `0 0 ${wide} ${tall}`, height: tall, role: "img", "aria-label": said },
      ticks(low, high, tickCount(wide - left)).map((v) => [svg("line", { class: "gridline", x1: x(v), x2: x(v), y1: 4, y2: tall - 22 }), svg("text", { x: x(v), y: tall - 6, "text-anchor": "middle", text: digits(v, 3) })]),
      // where names stand above their lines, zero is drawn beside the lines alone: it would cross the names
      spec.zero ? svg("path", { class: "zero", d: above ? rows.map((_, i) => `M${x(0)},${40 * i + 20}v20`).join("") : `M${x(0)},4V${tall - 22}`, stroke: "var(--ink)", "stroke-width": 1.5, "stroke-dasharray": "4 3" }) : null, rows.map(each)));
  }
  follow(plot, draw);
  return el("figure", { class: "card wide" }, el("figcaption", {}, el("h3", { text: spec.title }), el("p", { class: "note", text: spec.note })), plot, spec.table);
}
const signed = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${value.toFixed(4)}`);
const endsOf = (interval) => (interval.length ? `${signed(interval[0])} to ${signed(interval[1])}` : "–");
const chance = (p) => (p === null ? "–" : p < 0.001 ? "< 0.001" : p.toFixed(3));
function pairedBlock(d) {
  const pairs = d.paired.some, lower = d.metric.better === "lower" ? " Lower is better." : "", several = d.paired.count > 1;
  const about = several ? ` Coloured: p below 0.05 after Holm’s correction for all ${d.paired.count} comparisons; where grey, no difference is shown.` : " Where the line crosses zero, no difference is shown.";
  return forest({ title: `Differences in ${d.metric.name}, seed by seed`, zero: true, format: signed,
    note: `A seed stands for the same data, budgets and initial weights in both, where no setting changes them: what it moves, it moves in both, and the difference is what tells settings apart.${lower} Lines are ${d.confidence} % intervals over three seeds or more (Student t), each alone.${about}${d.paired.count > pairs.length ? ` The first ${pairs.length} are here, differences.csv has all.` : ""}`,
    rows: pairs.map((pair) => ({ name: pair.name, value: pair.value, interval: pair.interval, sure: pair.shown })),
    table: table("Paired differences", [{ name: "difference" }, { name: "mean", number: true }, { name: `${d.confidence} % interval`, number: true }, { name: "p", number: true }, ...(several ? [{ name: "p (Holm)", number: true }] : []), { name: "seeds", number: true }, { name: "seed by seed" }],
      pairs.map((pair) => [pair.name, signed(pair.value), endsOf(pair.interval), chance(pair.p), ...(several ? [chance(pair.p_holm)] : []), whole(pair.seeds), pair.each.map(signed).join(", ")]), { open: true, tall: true }) });
}
