// Parts that the page of one run and the page of several share.
const STAGE_WORDS = { admit: "admit (sample, price, charge)", train: "train (wait for clients)", server: "server (combine, step)", evaluate: "evaluate", write: "write" };
function stagesBlock(entries) {
  const known = entries.filter((entry) => Object.keys(entry.stages || {}).length);
  if (!known.length) return null;
  const longest = Math.max(...known.map((entry) => Object.values(entry.stages).reduce((a, b) => a + b, 0)), 1e-9);
  const names = Object.keys(known[0].stages);
  const bars = known.map((entry) => {
    const total = Object.values(entry.stages).reduce((a, b) => a + b, 0);
    const bar = el("div", { class: "bar", role: "img", "aria-label": `${entry.label ? `${entry.label}: ` : ""}${names.map((n) => `${n} ${seconds(entry.stages[n])}`).join(", ")}` },
      names.map((n, i) => { const part = el("span", { title: `${n}: ${seconds(entry.stages[n])}` }); part.style.background = colour(i); part.style.flexBasis = `${100 * entry.stages[n] / longest}%`; return part; }));
    return el("div", {}, entry.label ? el("p", { class: "note", text: `${entry.label}: ${seconds(total)}` }) : null, bar);
  });
  const legend = el("ul", { class: "legend", "aria-label": "Stages" }, names.map((n, i) => {
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = colour(i);
    return el("li", { class: "item" }, swatch, el("span", { text: STAGE_WORDS[n] || n }), known.length === 1 ? el("span", { class: "value", text: seconds(known[0].stages[n]) }) : null);
  }));
  const heads = [{ name: known.length === 1 ? "run" : "entry" }, ...names.map((n) => ({ name: n, number: true }))];
  return el("figure", { class: "card" }, el("figcaption", {}, el("h3", { text: "Time by stage" }),
    el("p", { class: "note", text: "Seconds on this machine over all rounds; clients that train side by side count once." })), bars, legend,
  table("Time by stage", heads, () => known.map((entry) => [entry.label || "this run", ...names.map((n) => seconds(entry.stages[n]))])));
}
function guaranteeTable(promise, seeded) {
  return terms([["unit of privacy", promise.unit], ["against", promise.adversary.replace(/,$/, "")], ["the change", promise.relation],
    ["ε spent", promise.epsilon && promise.epsilon.max ? `${epsilon(promise.epsilon.min)} / ${epsilon(promise.epsilon.median)} / ${epsilon(promise.epsilon.max)} (smallest / median / largest over the clients)` : null],
    ["δ", delta(promise.delta)], ["sampler", promise.sampler], ["accountant", promise.accountant], ["noise drawn from", seeded ? null : promise.randomness], ["provided that", promise.assumes],
    ...(promise.also || []).map((other) => [`against ${other.adversary}`, `${other.epsilon.max === null ? `no ε per ${other.unit} that means anything` : `ε per ${other.unit} up to ${epsilon(other.epsilon.max)}`} at δ = ${delta(other.delta)}, to ${other.relation} (${other.sampler})`])]);
}
function settingsBlock(sections, words) {
  const rows = sections.flatMap(([section, keys]) => keys.map(([key, value, usual]) => [`${section}.${key}`, value, usual ? "default" : "set"]));
  return el("div", { class: "card" }, el("p", { class: "note", text: words }),
    table("Settings that were set", [{ name: "setting" }, { name: "value" }], rows.filter((row) => row[2] === "set").map((row) => row.slice(0, 2)), { open: true, tall: true }),
    table("Settings left at their defaults", [{ name: "setting" }, { name: "value" }], rows.filter((row) => row[2] !== "set").map((row) => row.slice(0, 2)), { summary: "Settings left at their defaults" }));
}
// Rows are what test rows are, columns what they were taken for; the tint is the share of the row, the diagonal is right.
function confusionBlock(metric) {
  const caption = "Confusion matrix", total = metric.confusion.map((row) => row.reduce((a, b) => a + b, 0));
  const cell = (count, i, j) => {
    const made = el("td", { class: `number${i === j ? " right" : ""}`, text: whole(count) });
    if (count) made.style.background = `rgba(var(--heat),${(0.04 + 0.4 * count / total[i]).toFixed(3)})`;
    return made;
  };
  return el("div", { class: "card" }, el("h3", { text: "Confusion matrix" }), el("p", { class: "note", text: "A row per true class, a column per answer of the final model on the public test rows; framed cells are right. The stronger a cell’s colour, the larger its share of the row." }),
    el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": `${caption}, table` }, el("table", { class: "confusion" }, el("caption", { class: "visually-hidden", text: caption }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "class ↓ predicted →" }), metric.classes.map((name) => el("th", { scope: "col", class: "number", text: name })))),
      el("tbody", {}, metric.confusion.map((row, i) => el("tr", {}, el("th", { scope: "row", text: metric.classes[i] }), row.map((count, j) => cell(count, i, j))))))));
}
function notesBlock(notes) {
  return notes && notes.length ? el("div", { class: "card" }, el("h3", { text: "Notes on the data" }), el("ul", {}, notes.map((note) => el("li", { text: note })))) : null;
}
// whatever a chart calls `raw` is named here
function foot(data) {
  const deployed = "This is a deployment, seen by its server: everything here follows from what sites declared or released, from public settings, or from public test rows. Under central DP who and how many took part, and bytes, stay with the server.";
  return el("footer", {}, el("p", { text: data.sites ? deployed : "What is marked “from raw data” (train loss, clip fraction, labels × clients, true sizes, what personalised models give; under central DP also who and how many took part, and bytes) was computed without noise. It exists because this is a simulation, is for the researcher, and is not covered by any ε: do not publish it together with a claim of privacy. Everything else follows from released messages, public settings or the public test set." }),
    el("p", { text: `Made by tacit ${data.tacit}. This file asks for nothing from any network.` }));
}
const tile = (name, value, more) => el("li", { class: "tile" }, el("span", { class: "name", text: name }), el("b", { text: value }), more ? el("span", { text: more }) : null);
