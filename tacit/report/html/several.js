// The page of several runs: lines with bands over seeds, one picture per promise where an epsilon is drawn.
function overlay(d, key, options) {
  let series = d.entries.map((e, i) => ({ entry: e, i })).filter(({ entry }) => entry.series[key] && (!options.only || options.only(entry)))
    .map(({ entry, i }) => ({ name: entry.label, index: i, x: entry.series.round, y: entry.series[key].mean, low: entry.series[key].low, high: entry.series[key].high, bound: options.bound }));
  if (options.alike) series = together(series);
  // the first line is the widest: where lines lie upon each other all of them are seen
  series.forEach((s, n) => { s.wide = 4 - 2.2 * (series.length > 1 ? n / (series.length - 1) : 1); });
  if (options.level && series.length) { const longest = series.reduce((a, b) => (a.x.length < b.x.length ? b : a)).x; series.push({ name: options.level[0], x: longest, y: longest.map(() => options.level[1]), index: 7, wide: 1.2 }); }
  return series.length ? chart({ xLabel: "round", ...options, series }) : null;
}
// Lines that are the same, point for point, are one line with all their names.
function together(series) {
  const found = new Map();
  for (const s of series) {
    const key = JSON.stringify([s.x, s.y, s.low, s.high]);
    found.set(key, [...(found.get(key) || []), s]);
  }
  return [...found.values()].map((same) => (same.length === 1 ? same[0] : { ...same[0], name: same.length === series.length ? `all ${same.length}, which are the same` : `${same.slice(0, 4).map((s) => s.name).join(" = ")}${same.length > 4 ? ` = ${same.length - 4} more` : ""}` }));
}
function severalTable(d) {
  const units = [...new Set(d.entries.map((e) => e.unit).filter(Boolean))];
  const heads = [{ name: "run" }, { name: `${d.metric.name} (${d.last})`, number: true },
    ...units.map((unit) => ({ name: `ε spent per ${unit}`, number: true })), ...(d.promises.length > 1 ? [{ name: "promise" }] : []), { name: "rounds", number: true }, { name: "up", number: true }, { name: "down", number: true }, { name: "time", number: true }, { name: "state" }];
  const state = (e) => {
    const words = e.ended === e.seeds ? "finished" : `unfinished: ${e.ended} of ${e.seeds} ended`;
    return e.early ? `${words}; ${e.early} stopped for want of budget` : words;
  };
  const spent = (e, unit) => (e.unit === unit && e.epsilon ? (e.epsilon.min === e.epsilon.max ? epsilon(e.epsilon.max) : `${epsilon(e.epsilon.min)} to ${epsilon(e.epsilon.max)}`) : e.unit === null ? "no promise" : "–");
  return table("Runs side by side", heads, d.entries.map((e) => [e.label, e.score === null ? "–" : `${e.score.toFixed(4)}${e.interval === null ? "" : ` ± ${e.interval.toFixed(4)}`}`,
    ...units.map((unit) => spent(e, unit)), ...(d.promises.length > 1 ? [e.promise === null ? "none" : `(${e.promise + 1}) per ${e.unit}`] : []), `${whole(e.rounds)} of ${whole(e.planned)}`, bytes(e.uplink_bytes), bytes(e.downlink_bytes), seconds(e.seconds), state(e)]), { open: true, tall: true });
}
// What whoever sees all runs of a comparison learns: a sum for every promise, never over two of them.
function costBlock(cost) {
  return el("div", { class: "card total" }, el("h3", { text: "What all runs cost in total" }), el("p", { class: "note", text: "An ε above is that of one run. Whoever sees all runs of a line learns at most what its sum says, on the conditions below." }),
    cost.sums.length ? table("What all runs cost in total", [{ name: "per" }, { name: "ε in total", number: true }, { name: "δ", number: true }, { name: "runs", number: true }, { name: "the change" }, { name: "against" }],
      cost.sums.map((one) => [one.unit, `≤ ${one.epsilon}`, delta(one.delta), whole(one.runs), one.relation, one.adversary.replace(/,$/, "")]), { open: true, tall: true }) : el("p", { text: "No run here has promised anything yet: there is no sum." }),
    [...cost.sums.map((one) => one.sentence), ...cost.notes].map((text) => el("p", { class: "note", text })));
}
function byEpsilon(d, number) {
  const promise = d.promises[number], mine = d.entries.filter((e) => e.promise === number && e.epsilon && e.score !== null);
  if (mine.length < 2 || !mine.every((e) => e.epsilon.max > 0)) return null;
  const all = mine.map((e) => e.epsilon.max);
  if (Math.max(...all) < 1.01 * Math.min(...all)) return null;
  const real = new Map(), aside = (value) => { while (real.has(value)) value *= 1.04; return value; };
  const places = mine.map((e) => { const place = aside(e.epsilon.max); real.set(place, e.epsilon.max); return place; });
  return chart({ title: `${d.metric.name} by ε per ${promise.unit}${d.promises.length > 1 ? `, promise (${number + 1})` : ""}`, points: true, xlog: true, xLabel: `largest ε spent per ${promise.unit} (log scale)`, xName: "ε", xTick: (v) => digits(v, 3), xFormat: (v) => epsilon(real.get(v)), format: fixed(4), tick: percentTick, top: 1, bottom: 0,
    note: `Holds ${promise.statement}. Equal ε stand side by side.`,
    series: mine.map((e, n) => ({ name: e.label, index: d.entries.indexOf(e), x: [places[n]], y: [e.score], low: e.interval === null ? null : [Math.max(0, e.score - e.interval)], high: e.interval === null ? null : [Math.min(1, e.score + e.interval)] })) });
}
function severalPage(d) {
  const page = document.getElementById("page"), seeds = Math.max(...d.entries.map((e) => e.seeds)), band = seeds > 1 ? `Mean of ${seeds} seeds, band from the lowest to the highest.` : null;
  const grid = (name) => el("div", { class: "grid three" }, figuresOf("several", name, d).map((one) => (one.block ? one.block(d) : overlay(d, one.several, one.chart(d, band)))));
  const units = new Set(d.promises.map((p) => p.unit)), keys = [...new Set(d.entries.flatMap((e) => Object.keys(e.settings)))];
  const epsilons = d.promises.flatMap((promise, n) => [overlay(d, "epsilon_loosest", { title: `ε of the loosest client by round, per ${promise.unit}${d.promises.length > 1 ? `, promise (${n + 1})` : ""}`, note: `Holds ${promise.statement}. An upper bound, of the client that has spent most until then${seeds > 1 ? "; the largest over seeds" : ""}.`, xName: "after round", format: epsilon, zero: true, bound: true, alike: true, only: (e) => e.promise === n }), byEpsilon(d, n)]);
  page.replaceChildren(...[
    el("h1", {}, `${d.name} `, el("span", { class: `badge ${d.finished ? "ok" : "warn"}`, text: d.finished ? "finished" : d.live ? "running" : "unfinished" })),
    el("p", { class: "lead", text: `${plural(d.entries.length, "entry").replace("entrys", "entries")}${seeds > 1 ? `, up to ${seeds} seeds each` : ""}, side by side.` }),
    seededBanner(d.seeded, d.seeded_alone),
    d.finished || d.live ? null : el("p", { class: "banner", role: "note", text: "Not every run has ended: the table counts those that have, the pictures show what there is." }),
    section("table", "Side by side", severalTable(d), seeds > 1 ? el("p", { class: "note", text: `± is the ${d.confidence} % interval over seeds (Student t).` }) : null),
    d.paired ? section("differences", "Differences", pairedBlock(d)) : null,
    d.matrix ? section("attacks", "Attacks", matrixBlock(d.matrix)) : null,
    section("guarantee", "Guarantees", units.size > 1 ? el("p", { class: "banner", role: "note", text: "Some ε here are per record and some per client. They measure different things: no picture has them on one axis, and a smaller one of the one kind is not stronger than a larger one of the other." }) : null,
      d.promises.length ? d.promises.map((promise, n) => el("div", { class: "card promise" }, el("p", { text: `${d.promises.length > 1 ? `(${n + 1}) ` : ""}Differential privacy ${promise.statement}.` }), guaranteeTable(promise, promise.seeded), el("p", { class: "note", text: `Made by: ${d.entries.filter((e) => e.promise === n).map((e) => e.label).join("; ")}` })))
        : el("div", { class: "card promise none" }, el("p", { text: "No privacy is promised by any of these runs." })),
      d.entries.some((e) => e.promise === null) && d.promises.length ? el("p", { class: "note", text: `No promise: ${d.entries.filter((e) => e.promise === null).map((e) => e.label).join("; ")}` }) : null,
      d.total ? costBlock(d.total) : el("p", { class: "note", text: "An ε is that of one run: whoever sees several runs on the same data sees what they spend in total." })),
    d.homes ? section("personal", "Personalised models", homesBlock(d), d.homes_by_client.length ? homesByClient(d.homes_by_client) : null) : null,
    section("learning", "Learning", grid("learning")),
    epsilons.some(Boolean) ? section("privacy", "Privacy spent", el("div", { class: "grid" }, epsilons)) : null,
    section("costs", "Costs", grid("costs")),
    section("settings", "Settings", keys.length ? el("div", { class: "card" }, el("h3", { text: "What differs" }), table("Settings that differ", [{ name: "run" }, ...keys.map((key) => ({ name: key }))], d.entries.map((e) => [e.label, ...keys.map((key) => (e.settings[key] === undefined ? "–" : e.settings[key]))]), { open: true, tall: true })) : null,
      settingsBlock(d.settings, "What all of them share."), notesBlock(d.notes)),
    foot(d),
  ].filter(Boolean));
}
