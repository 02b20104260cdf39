// A site's own page: what it was promised, what it has spent of its own limit, and what joining gives it. It stays in its folder.
const shortRun = (run) => run.slice(0, 8);
function siteSpent(d) {
  if (!d.runs.length) return el("p", { class: "note", text: "Its ledger holds no charge yet." });
  const caption = `ε sealed by run, per ${d.unit}`, mine = d.runs.filter((one) => one.unit === d.unit), top = typeof d.limit === "number" ? d.limit : Math.max(...mine.map((one) => one.sealed).filter((v) => typeof v === "number"), 1e-9);
  const share = (value) => (typeof value === "number" ? 100 * Math.min(1, value / top) : 100);
  const bar = (sealed, used) => {
    const box = el("span", { class: "allowed" }), inner = el("span", { class: "used" });
    box.style.width = `${Math.max(0.5, share(sealed))}%`;
    inner.style.width = `${sealed ? Math.min(100, 100 * share(used) / Math.max(share(sealed), 1e-9)) : 0}%`;
    box.append(inner);
    return el("td", { class: "bars", "aria-hidden": "true" }, box);
  };
  const row = (name, used, sealed, more) => el("tr", { class: more ? null : "sum" }, el("th", { scope: "row" }, name, more ? el("span", { class: "note", text: more }) : null), bar(sealed, used === null ? sealed : used),
    el("td", { class: "number nowrap" }, used === null ? "" : `≤ ${epsilon(used)}`), el("td", { class: "number" }, el("b", { text: `≤ ${epsilon(sealed)}` })));
  const what = (one) => `${one.began ? `${one.began} UTC, ` : ""}${whole(one.releases[0])} of at most ${plural(one.releases[1], "release")}`;
  return el("div", { class: "card each" }, el("h3", { text: caption }),
    el("p", { class: "note", text: `A run seals its price when it begins, and what is sealed counts against the limit, used or not: ε ${limitText(d.limit === "inf" ? null : d.limit)} per ${d.unit} at δ = ${delta(d.delta)}, in budget.toml. A full bar is the whole limit.` }),
    el("table", {}, el("caption", { class: "visually-hidden", text: caption }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "run" }), el("td", { class: "bars", "aria-hidden": "true" }), el("th", { scope: "col", class: "number", text: "ε used" }), el("th", { scope: "col", class: "number", text: "ε sealed" }))),
      el("tbody", {}, mine.map((one) => row(one.purpose ? one.purpose : one.kept ? shortRun(one.run) : `${shortRun(one.run)} (its folder is gone)`, one.used, one.sealed, what(one))), row(`all runs, of ${limitText(d.limit === "inf" ? null : d.limit)}`, null, d.sealed))),
    d.other_units.map((one) => el("p", { class: "note", text: `Beside that, ε ≤ ${epsilon(one.sealed)} per ${one.unit} at δ = ${delta(one.delta)}: another unit, which is never added.` })));
}
// every set of rows that judged models of a run: those held out of training, then files of new rows
function judgings(d) {
  const known = d.told.filter((one) => one.compared), of = (one, name) => (known.length > 1 ? `${name}, ${shortRun(one.run)}` : name);
  return known.flatMap((one) => [
    { name: of(one, "held-out rows"), rows: one.compared.rows, by: one.compared.metrics },
    ...one.evaluated.map((file) => ({ name: of(one, file.file), rows: file.rows, by: file.metrics, seen: file.seen }))]);
}
function siteModels(d) {
  const all = judgings(d), newest = d.told.find((one) => one.compared);
  if (!all.length) return el("p", { class: "note", prose: d.wanted === null ? 'site.toml asks for no personalised models. With held_out = 0.2 and [personal] kind = "mean-regularised" in it, the site learns here what it gets from joining that it would not have alone.' : `Personalised models are asked for (${d.wanted}), and none is made yet: \`tacit deploy site ${d.folder} --adapt\` makes those of the newest run.` });
  const names = [...new Set(all.flatMap((one) => one.by.map(([name]) => name)))], silent = all.flatMap((one) => one.by.filter(([, models]) => !models).map(([name]) => `${name} (${one.name})`));
  const figure = (name) => {
    const known = all.map((one) => ({ ...one, found: one.by.find(([other]) => other === name) })).filter((one) => one.found && one.found[1]);
    return known.length ? dumbbells({ title: `${name} on own rows`, names: known.map((one) => one.name), models: known.map((one) => one.found[1]),
      note: "On rows that the site trains on never, or on new ones; with 95 % over rows in the table.",
      table: table(`${name} on own rows`, [{ name: "rows" }, { name: "how many", number: true }, ...HOMES.map((home) => ({ name: home, number: true })), { name: "personalised − alone", number: true }, { name: "personalised − global", number: true }],
        known.map((one) => [one.name, `${whole(one.rows)}${one.seen ? `, ${whole(one.seen)} trained on` : ""}`, ...one.found[1].map(valueEnds), ...one.found[2].map(gapEnds)]), { open: true, tall: true }) }) : null;
  };
  return [el("p", { class: "note", prose: `Alone is what the site makes of its rows without anybody; global is the model of all, which has its ε; personalised (${newest.compared.kind}) is what the site makes of the global one on its machine, of ${plural(newest.compared.trained_on, "row")}${newest.compared.from === "alone" ? " (of the newest run it kept the one made alone, because its training rows speak for that)" : ""}. Alone and personalised have no ε. \`tacit predict\` takes ${HOMES[newest.compared.use]} for the newest run, unless told otherwise.` }),
    newest.compared.notes.map((text) => el("p", { class: "note", text })),
    silent.length ? el("p", { class: "note", text: `These rows have one class and cannot tell: ${silent.join("; ")}.` }) : null,
    el("div", { class: "grid" }, names.map(figure))];
}
function sitePage(d) {
  const newest = d.told.find((one) => one.compared), head = newest && newest.compared.metrics.find(([, models]) => models), left = typeof d.limit === "number" && typeof d.sealed === "number" ? Math.max(0, d.limit - d.sealed) : null;
  const promises = d.told.filter((one) => one.promise), first = promises[0], promise = (one) => el("div", { class: "card promise" }, el("p", { text: one.promise }), el("p", { class: "note", text: `run ${one.run}` }));
  document.getElementById("page").replaceChildren(...[
    el("h1", {}, `${d.name} `, el("span", { class: "badge warn", text: "for this site alone" })), el("p", { class: "lead", text: `${d.folder} · what it was promised, what it has spent, and what it gets from joining` }),
    el("p", { class: "banner", role: "note" }, el("strong", { text: "This page stays in the site’s folder. " }), newest ? "What personalised models give is computed from the site’s rows without noise: no ε covers it. Do not send this file, and do not publish it." : "It is for the site’s own people; no server sees it."),
    d.trial ? el("p", { class: "banner", role: "note", text: "budget.toml lets trials in (trial = true): noise that is drawn from a seed protects from nobody who knows the seed." }) : null,
    el("ul", { class: "tiles", "aria-label": "How it stands" },
      tile(`ε sealed, per ${d.unit}`, `≤ ${epsilon(d.sealed)}`, `of ${limitText(d.limit === "inf" ? null : d.limit)}, all runs in total`),
      left === null ? null : tile("ε left", digits(Math.floor(1000 * left) / 1000, 4), "for runs to come"),
      tile("Runs", whole(d.known), "that the site agreed to"),
      head ? tile(`${HOMES[newest.compared.use]} ${head[0]}`, fixed(3)(head[1][newest.compared.use][0]), HOMES.map((home, k) => `${home} ${fixed(3)(head[1][k][0])}`).filter((_, k) => k !== newest.compared.use).join(", ")) : null),
    newest ? el("p", { class: "worth" }, el("strong", { text: "Was it worth joining? " }), newest.compared.because) : null,
    section("guarantee", "What it was promised", first ? [promise(first), promises.length > 1 ? el("details", {}, el("summary", { text: `The promises of ${plural(promises.length - 1, "earlier run")}` }), promises.slice(1).map(promise)) : null] : el("p", { class: "note", text: "No run has asked the site for anything yet." })),
    section("privacy", "What it has spent", siteSpent(d)),
    section("personal", "What it gets from joining", siteModels(d)),
    el("footer", {}, el("p", { text: "Promises and prices are the site’s own: computed here, and on its own ledger. What stands under “from raw data” was computed from its rows and stays here." }), el("p", { text: `Made by tacit ${d.tacit}. This file asks for nothing from any network.` })),
  ].filter(Boolean));
}
