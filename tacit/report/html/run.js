// The page of one run.
const has = (data, key) => (data.rounds[key] || []).some((v) => v !== null);
const line = (data, key, name, index, more) => ({ name, x: data.rounds.round, y: data.rounds[key] || [], index, ...more });
function percentTick(v) { return `${Number((100 * v).toPrecision(4))} %`; }

function statusOf(d) {
  if (!d.finished && d.sites && d.sites.state === "failed") return ["stopped", "bad", `after ${whole(d.done)} of ${plural(d.planned, "round")}`];
  if (!d.finished) return [d.live ? "running" : "unfinished", "warn", `after ${whole(d.done)} of ${plural(d.planned, "round")}`];
  if (d.stopped === "budget") return ["stopped early", "warn", `after ${whole(d.done)} of ${plural(d.planned, "round")}: too few clients could pay for another round`];
  return ["finished", "ok", `all ${plural(d.planned, "planned round")}`];
}
function headBlock(d) {
  const [word, tone, more] = statusOf(d);
  return [el("h1", {}, `${d.name} `, el("span", { class: `badge ${tone}`, text: word })), el("p", { class: "lead", text: `${d.folder} · ${more}` }),
    !d.finished && !d.live ? el("p", { class: "banner", role: "note", prose: `This run is unfinished: it shows what ${plural(d.done, "round")} had left at ${d.made}. Nothing here is a final result. If it was stopped or killed, go on with it by \`tacit ${d.sites ? `deploy up ${d.folder} --resume` : `run --resume --out ${d.folder}`}\`; \`tacit report\` makes this page anew.` }) : null, seededBanner(d.seeded),
    d.not_better ? el("p", { class: "banner", role: "note", text: d.not_better }) : null];
}
function tilesBlock(d) {
  const last = (key) => (d.rounds[key] || [])[d.rounds.round.length - 1], ends = d.metric.interval;
  return el("ul", { class: "tiles", "aria-label": "Final numbers" },
    tile(`Test ${d.metric.name}`, fixed(4)(d.metric.value === null ? last("score") : d.metric.value), !d.finished ? "so far" : ends ? `95 % over test rows: ${fixed(3)(ends[0])} to ${fixed(3)(ends[1])}` : "of the final model"),
    epsilonTile(d),
    tile("Rounds", whole(d.done), `of ${whole(d.planned)} planned`),
    d.clients ? tile("Clients", whole(d.clients.count), d.clients.records ? `${whole(d.clients.records[0])} to ${whole(d.clients.records[2])} records each` : null) : null,
    tile("Traffic", bytes(last("uplink_total")), `up; ${bytes(last("downlink_total"))} down`),
    tile("Time", d.final.time || seconds(Object.values(d.stages).reduce((a, b) => a + b, 0)), "on this machine"));
}
function promiseBlock(d) {
  return el("div", { class: `card promise${d.guarantee || !d.known ? "" : " none"}` }, el("p", { text: d.sentence }), d.guarantee ? guaranteeTable(d.guarantee, d.seeded) : null);
}
function clientsTable(d) {
  const c = d.clients;
  if (!c || !c.names) return null;
  const heads = [{ name: "client" }, { name: "records", number: true }, ...(d.guarantee ? [{ name: "ε limit", number: true }, { name: "ε spent", number: true }, { name: "rounds charged", number: true }] : [])];
  return table("Clients", heads, () => c.names.map((name, i) => [name, whole(c.sizes[i]), ...(d.guarantee ? [limitText(c.limits[i]), c.spent && typeof c.limits[i] !== "string" ? epsilon(c.spent[i]) : "–", c.taken ? whole(c.taken[i]) : "–"] : [])]), { summary: `All ${plural(c.count, "client")}: records, limit, spent, rounds charged` });
}
// what is known of the final model on the public test rows
function measuredBlocks(m) {
  return [
    m.all.length ? el("div", { class: "card" }, el("h3", { text: "On the public test set" }), table("Metrics", [{ name: "metric" }, { name: "final model", number: true }, { name: "95 % over test rows", number: true }, { name: BASELINE, number: true }],
      m.all.map(([name, value, ends, constant]) => [name, fixed(4)(value), ends.length ? `${fixed(4)(ends[0])} to ${fixed(4)(ends[1])}` : "–", constant === null ? "–" : fixed(4)(constant)]), { open: true })) : null,
    m.confusion ? confusionBlock(m) : null,
    m.per_class.length ? el("div", { class: "card" }, el("h3", { text: "Class by class" }), table("Class by class", [{ name: "class" }, { name: "test rows", number: true }, ...["recall", "precision", "F1"].flatMap((name) => [{ name, number: true }, { name: "95 %", number: true }])],
      m.per_class.map(([name, rows, ...measures]) => [name, whole(rows), ...measures.flatMap(([value, ends]) => [value === null ? "–" : fixed(3)(value), ends.length ? `${fixed(3)(ends[0])} to ${fixed(3)(ends[1])}` : "–"])]), { open: m.per_class.length <= 12 })) : null,
  ];
}
function runPage(d) {
  const page = document.getElementById("page"), drawn = [], slots = [];
  const grid = (section, three) => el("div", { class: `grid${three ? " three" : ""}` }, figuresOf("run", section, d).map((one) => placed(one, d, drawn, slots)));
  const slot = (build) => placed({ block: build }, d, drawn, slots);
  page.replaceChildren(...[
    slot(headBlock), slot(tilesBlock), slot(eachBlock),
    d.sites ? section("sites", "Sites", slot(sitesBlock)) : null,
    section("guarantee", "Guarantee", slot(promiseBlock)),
    section("learning", "Learning", has(d, "score") ? grid("learning") : el("p", { class: "note", text: d.rounds.round.length ? "There are no public test rows: how good the model is in each round is not known." : "No round has ended yet." }),
      measuredBlocks(d.metric),
      d.thinned > 1 ? el("p", { class: "note", text: `Every ${d.thinned}th round is drawn; rounds.csv has all of them.` }) : null),
    d.guarantee ? section("privacy", "Privacy spent", d.curves.length ? grid("privacy") : el("p", { class: "note", text: "Nothing has been charged yet." })) : null,
    d.audit ? section("audit", "Audit", auditBlock(d.audit)) : null,
    d.findings && d.findings.length ? section("attacks", "Attacks", d.findings.map(findingBlock)) : null,
    d.personal ? section("personal", "Personalised models", personalBlock(d.personal)) : null,
    d.rounds.round.length ? section("noise", "Clipping and noise", grid("noise", true)) : null,
    section("clients", "Clients", grid("clients"), slot(clientsTable)),
    d.rounds.round.length ? section("costs", "Costs", grid("costs", true)) : null,
    section("settings", "Settings", settingsBlock(d.settings, "All settings of the run, resolved. Repeat it from experiment.toml in its folder."), slot((now) => (Object.keys(now.final).length ? el("div", { class: "card" }, el("h3", { text: "Final numbers" }), terms(Object.entries(now.final))) : null)), notesBlock(d.notes)),
    foot(d),
  ].filter(Boolean));
  return (next) => {
    drawn.forEach(([figure, made]) => made.update(roundly(figure.chart(next))));
    slots.forEach(([node, build]) => node.replaceChildren(...[build(next)].flat().filter(Boolean)));
  };
}
