// The page of a search: its best, and every run; all are paid for.
function triedBlock(d) {
  if (!d.tried.length) return null;
  const heads = [{ name: "run", number: true }, ...d.chosen.map(([key]) => ({ name: key })), { name: d.metric.name, number: true }, { name: "chosen" }];
  return el("div", { class: "card" }, el("h3", { text: "Every run" }), el("p", { class: "note", text: `The ε above is of all of them. Scores are on ${d.by}; a run without one diverged, or its metric could not be told.` }),
    table("Every run of the search", heads, d.tried.map((run) => [whole(run.number), ...run.settings, fixed(4)(run.score), run.best ? "✓ best" : "–"]), { open: true, tall: true }));
}
function searchPage(d) {
  const ends = d.metric.interval, price = (value) => (value === null ? "no bound" : value === "inf" ? "∞" : `ε ≤ ${epsilon(value)}`), per = d.guarantee ? ` per ${d.guarantee.unit}` : "";
  const spent = d.guarantee && d.guarantee.epsilon.max, before = new Map(d.asked);
  document.getElementById("page").replaceChildren(...[
    el("h1", {}, `${d.name} `, el("span", { class: "badge ok", text: "best of a search" })), el("p", { class: "lead", text: `${d.folder} · the best of ${plural(d.candidates, "candidate")}, chosen by ${d.metric.name} on ${d.by}` }),
    seededBanner(d.seeded), el("ul", { class: "tiles", "aria-label": "Final numbers" },
      tile(`Best ${d.metric.name}`, fixed(4)(d.metric.value), ends ? `95 %, on ${d.by}: ${fixed(3)(ends[0])} to ${fixed(3)(ends[1])}; chosen by it, so a little too high` : "of the best"),
      d.guarantee ? tile(`ε of the whole search${per}`, spent ? `≤ ${epsilon(spent)}` : "–", `δ = ${delta(d.guarantee.delta)}`) : tile("Privacy", "none", "nothing is promised"),
      tile("Candidates", whole(d.candidates), `runs: ${d.runs}, all of them paid for`)),
    section("guarantee", "Guarantee", el("div", { class: `card promise${d.guarantee ? "" : " none"}` }, el("p", { text: d.sentence }), d.guarantee ? guaranteeTable(d.guarantee, d.seeded) : null)),
    section("search", "The search", el("div", { class: "card" }, el("h3", { text: "What was chosen" }),
      table("Settings that were searched", [{ name: "setting" }, { name: "best" }, { name: "among" }], d.chosen.map(([key, value]) => [key, value, before.get(key) || "–"]), { open: true, tall: true })),
    triedBlock(d),
    d.guarantee ? el("div", { class: "card" }, el("h3", { text: "What it costs" }), el("p", { class: "note", text: "Paid for before the first run." }),
      terms([[`one run${per}`, price(d.one)], [`all runs${per} (charged)`, price(spent)]])) : null),
    section("learning", "Learning", measuredBlocks(d.metric)),
    section("settings", "Settings", settingsBlock(d.settings, "All settings of the best run, resolved. Its experiment.toml is in best/.")),
    el("footer", {}, el("p", { text: `This page is made of what a search releases, and of public settings. Made by tacit ${d.tacit}. This file asks for nothing from any network.` })),
  ].filter(Boolean));
}
