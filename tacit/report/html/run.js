// The page of one run.
function groupName(curve) {
  const limit = curve.limits === null ? "no limit" : curve.limits[0] === curve.limits[1] ? `limit ${limitText(curve.limits[0])}` : `limits ${limitText(curve.limits[0])} to ${limitText(curve.limits[1])}`;
  if (curve.name) return `${curve.name} (${limit})`;
  const which = curve.limits && curve.limits[0] !== curve.limits[1] ? `; shown: ${limitText(curve.limit)}` : "";
  return `${plural(curve.clients, "client")}, ${limit}${which}`;
}
const has = (data, key) => (data.rounds[key] || []).some((v) => v !== null);
const line = (data, key, name, index, more) => ({ name, x: data.rounds.round, y: data.rounds[key] || [], index, ...more });

// what the shares of the classes, told for every row, have as their loss; only where the loss is the log loss, as its last value tells
function constantLoss(d) {
  const known = d.metric.all.find(([name]) => name === "log loss"), last = (d.rounds.loss || []).slice(-1)[0];
  return known && known[3] !== null && Math.abs(known[1] - last) < 1e-3 * (1 + last) ? [{ name: "a constant answer", x: d.rounds.round, y: d.rounds.round.map(() => known[3]), index: 7, wide: 1.2 }] : [];
}
// what each chart of the page shows; called again when a live run has gone on
const CHARTS = {
  score: (d) => ({ title: `Test ${d.metric.name} by round`, note: `On the public test set.${d.metric.baseline === null ? "" : ` A constant answer (the majority, or the mean) reaches ${fixed(4)(d.metric.baseline)}.`}`, xLabel: "round", format: fixed(4),
    ...(d.metric.share ? { tick: percentTick, top: 1 } : {}), series: [line(d, "score", `test ${d.metric.name}`, 0), ...(has(d, "backdoor_accuracy") ? [line(d, "backdoor_accuracy", "backdoor accuracy (not covered by ε)", 2)] : []), ...(d.metric.baseline === null ? [] : [{ name: "a constant answer", x: d.rounds.round, y: d.rounds.round.map(() => d.metric.baseline), index: 1 }])] }),
  loss: (d) => ({ title: "Loss by round", note: has(d, "train_loss") ? "The test loss is public; the clients' train loss carries no noise and is not covered by ε." : null, xLabel: "round", format: fixed(4),
    series: [line(d, "loss", "test loss", 0), ...(has(d, "train_loss") ? [line(d, "train_loss", "train loss (raw)", 1)] : []), ...constantLoss(d)] }),
  epsilon: (d) => {
    const finite = d.curves.map((c) => c.limit).filter((v) => v), wide = finite.length && Math.max(...finite) / Math.min(...finite) > 12;
    return { title: `ε spent by round, per ${d.guarantee.unit}`, wide: true, height: 300, log: wide, zero: !wide, xLabel: "round", xName: "after round", format: epsilon,
      note: `${d.guarantee.relation}; against ${d.guarantee.adversary.replace(/,$/, "")}; δ = ${delta(d.guarantee.delta)}. Dotted lines are limits, where they are near enough to be drawn. Exact at the marks; between two marks the line is an upper bound.`,
      series: d.curves.map((c, i) => ({ name: groupName(c), x: c.rounds, y: c.epsilon, limit: c.limit, bound: true, index: i })) };
  },
  clipped: (d) => ({ title: "Clip fraction by round", raw: true, note: "The share of gradients or updates that were longer than the clip norm.", xLabel: "round", format: percent, tick: percentTick, zero: true, top: 1, series: [line(d, "clipped", "clipped", 0)] }),
  signal: (d) => ({ title: "Signal-to-noise by round", note: d.central ? "|signal| / |noise| of the noised sum that the server releases: it costs no privacy." : "|signal| / |noise| of a client's update, estimated from what was released: it costs no privacy. The band runs from the lowest to the highest client; 0 means that noise hides the signal.", xLabel: "round", format: fixed(3), zero: true,
    series: [line(d, "signal_to_noise", d.central ? "sum of the round" : "median client", 0, { low: d.rounds.signal_to_noise_low, high: d.rounds.signal_to_noise_high })] }),
  step: (d) => ({ title: "Length of the model's step by round", note: "The norm of the change that the server made to the model.", xLabel: "round", format: (v) => digits(v), zero: true, series: [line(d, "update_norm", "step", 0)] }),
  cohort: (d) => ({ title: "Clients by round", raw: d.central, note: d.central ? "How many took part stays with the trusted server: the promise rests on it." : "Who took part, and who can pay for no further round.", xLabel: "round", format: whole, tick: whole, zero: true,
    series: [line(d, "cohort", "took part", 0), ...(has(d, "out_of_budget") ? [line(d, "out_of_budget", "out of budget", 1)] : [])] }),
  perClient: (d) => ({ title: `${d.per_client.metric} of the final model, client by client`, raw: true, note: `On the rows that each client ${d.per_client.kept ? "kept for this" : "trained on"}, from the worst served to the best; the band is 95 % over its rows.${d.per_client.untold ? ` The rows of ${plural(d.per_client.untold, "client")} cannot tell.` : ""} per_client.json has every client by name.`, xLabel: "client, from the worst served", xName: "client", format: fixed(4), ...(d.metric.share ? { tick: percentTick, top: 1 } : {}),
    series: [{ name: d.per_client.metric, x: d.per_client.values.map((_, i) => i + 1), y: d.per_client.values, low: d.per_client.low, high: d.per_client.high, index: 0 }] }),
  traffic: (d) => ({ title: "Traffic until each round", raw: d.central, note: "Bytes that were really serialised, all clients together.", xLabel: "round", format: bytes, tick: bytes, zero: true,
    series: [line(d, "uplink_total", "up", 0), line(d, "downlink_total", "down", 1)] }),
  time: (d) => ({ title: "Seconds by round", xLabel: "round", format: seconds, tick: seconds, zero: true, series: [line(d, "seconds", "whole round", 0), ...(has(d, "seconds_train") ? [line(d, "seconds_train", "of these, training", 1)] : [])] }),
};
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
function droppedBlock(d) {
  const out = (d.rounds.out_of_budget || []).slice(-1)[0] || 0, early = d.dropped.reduce((sum, [, names]) => sum + names.length, 0);
  let words = "Nobody dropped out: every client could pay for every round that it was drawn for.";
  if (early) words = `${plural(early, "client")} ran out of budget before the planned end: another round would have taken each past its limit, so the ledger let it take part no more.`;
  else if (out && d.done >= d.planned) words = `Nobody dropped out before the end. ${plural(out, "client")} could pay for no round beyond the last: the budget was spread to end there.`;
  else if (d.central && d.stopped === "budget") words = `All ${plural(out, "client")} pay for every round together, drawn or not; after round ${whole(d.done)} they could not pay for another.`;
  if (!d.known) words = "Nobody has been asked for anything yet.";
  else if (!d.guarantee) words = "Nobody dropped out: without a promise there is no budget to run out of.";
  return el("div", { class: "card" }, el("h3", { text: "Who dropped out, and why" }), el("p", { text: words }),
    early ? table("Clients that ran out of budget", [{ name: "out from round" }, { name: "clients" }],
      d.dropped.map(([round, names]) => [whole(round), names.length > 40 ? `${names.slice(0, 40).join(", ")} and ${names.length - 40} more` : names.join(", ")]), { open: true }) : null,
    d.refused.count ? [el("p", {}, el("span", { class: "raw", text: "from raw data: not covered by ε" }), ` The server could not use ${plural(d.refused.count, "message")} and counted each as a zero update.`),
      table("Messages refused", [{ name: "round" }, { name: "client" }, { name: "why", prose: true }], d.refused.some.map(([round, name, why]) => [whole(round), name, why]), { summary: d.refused.count > d.refused.some.length ? `The first ${d.refused.some.length} of them` : "Which, and why" })] : null);
}
function clientsTable(d) {
  const c = d.clients;
  if (!c || !c.names) return null;
  const heads = [{ name: "client" }, { name: "records", number: true }, ...(d.guarantee ? [{ name: "ε limit", number: true }, { name: "ε spent", number: true }, { name: "rounds charged", number: true }] : [])];
  return table("Clients", heads, () => c.names.map((name, i) => [name, whole(c.sizes[i]), ...(d.guarantee ? [limitText(c.limits[i]), c.spent ? epsilon(c.spent[i]) : "–", c.taken ? whole(c.taken[i]) : "–"] : [])]), { summary: `All ${plural(c.count, "client")}: records, limit, spent, rounds charged` });
}
// what is known of the final model on the public test rows
function measuredBlocks(m) {
  return [
    m.all.length ? el("div", { class: "card" }, el("h3", { text: "On the public test set" }), table("Metrics", [{ name: "metric" }, { name: "final model", number: true }, { name: "95 % over test rows", number: true }, { name: "a constant answer", number: true }],
      m.all.map(([name, value, ends, constant]) => [name, fixed(4)(value), ends.length ? `${fixed(4)(ends[0])} to ${fixed(4)(ends[1])}` : "–", constant === null ? "–" : fixed(4)(constant)]), { open: true })) : null,
    m.confusion ? confusionBlock(m) : null,
    m.per_class.length ? el("div", { class: "card" }, el("h3", { text: "Class by class" }), table("Class by class", [{ name: "class" }, { name: "test rows", number: true }, ...["recall", "precision", "F1"].flatMap((name) => [{ name, number: true }, { name: "95 %", number: true }])],
      m.per_class.map(([name, rows, ...measures]) => [name, whole(rows), ...measures.flatMap(([value, ends]) => [value === null ? "–" : fixed(3)(value), ends.length ? `${fixed(3)(ends[0])} to ${fixed(3)(ends[1])}` : "–"])]), { open: m.per_class.length <= 12 })) : null,
  ];
}
function runPage(d) {
  const page = document.getElementById("page"), figures = {}, slots = {};
  const make = (key) => { figures[key] = chart(CHARTS[key](d)); drawn.push(() => figures[key].update({})); return figures[key]; };
  const slot = (name, build) => { slots[name] = { node: el("div", {}, build(d)), build }; return slots[name].node; };
  const researcher = [has(d, "clipped") ? make("clipped") : null, has(d, "signal_to_noise") ? make("signal") : null, has(d, "update_norm") ? make("step") : null];
  page.replaceChildren(...[
    slot("head", headBlock), slot("tiles", tilesBlock), slot("each", eachBlock),
    d.sites ? section("sites", "Sites", slot("sites", sitesBlock)) : null,
    section("guarantee", "Guarantee", slot("promise", promiseBlock)),
    section("learning", "Learning", has(d, "score") ? el("div", { class: "grid" }, make("score"), make("loss")) : el("p", { class: "note", text: d.rounds.round.length ? "There are no public test rows: how good the model is in each round is not known." : "No round has ended yet." }),
      measuredBlocks(d.metric),
      d.thinned > 1 ? el("p", { class: "note", text: `Every ${d.thinned}th round is drawn; rounds.csv has all of them.` }) : null),
    d.guarantee ? section("privacy", "Privacy spent", el("div", { class: "grid" }, d.curves.length ? make("epsilon") : el("p", { class: "note", text: "Nothing has been charged yet." }))) : null,
    d.audit ? section("audit", "Audit", auditBlock(d.audit)) : null,
    d.findings && d.findings.length ? section("attacks", "Attacks", d.findings.map(findingBlock)) : null,
    d.personal ? section("personal", "Own models", personalBlock(d.personal)) : null,
    d.rounds.round.length ? section("noise", "Clipping and noise", el("div", { class: "grid three" }, researcher)) : null,
    section("clients", "Clients", el("div", { class: "grid" }, d.rounds.round.length ? make("cohort") : null, slot("dropped", droppedBlock), d.per_client && d.per_client.values.length ? make("perClient") : null, d.labels ? heatmap(d.labels, d.clients) : null), slot("table", clientsTable)),
    d.rounds.round.length ? section("costs", "Costs", el("div", { class: "grid three" }, make("traffic"), make("time"), slot("stages", (now) => stagesBlock([now])))) : null,
    section("settings", "Settings", settingsBlock(d.settings, "Everything the run was told, resolved. Repeat it from experiment.toml in its folder."), slot("final", (now) => (Object.keys(now.final).length ? el("div", { class: "card" }, el("h3", { text: "Final numbers" }), terms(Object.entries(now.final))) : null)), notesBlock(d.notes)),
    foot(d),
  ].filter(Boolean));
  return (next) => {
    for (const key of Object.keys(figures)) figures[key].update(CHARTS[key](next));
    for (const { node, build } of Object.values(slots)) node.replaceChildren(...[build(next)].flat().filter(Boolean));
  };
}
