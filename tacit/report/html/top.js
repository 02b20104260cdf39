// What must be seen before anything else: whose ε is what, and that seeded noise protects nobody who knows the seed.
const FEW = 40, ONE_COLUMN = 12;
// `alone` names those of several runs that it is about, where others drew their noise elsewhere.
function seededBanner(seeded, alone = []) {
  const whose = alone.length > 1 ? `${alone.slice(0, -1).join(", ")} and ${alone[alone.length - 1]}` : alone[0];
  if (seeded && whose) return el("p", { class: "banner", role: "note" }, el("strong", { text: `${whose} drew noise from a seed: ` }),
    "whoever knows it, and it stands in the settings, can compute the noise and take it away: against them no ε of ", alone.length > 1 ? "these runs" : "this run", " holds.");
  return seeded ? el("p", { class: "banner", role: "note" }, el("strong", { text: "An experiment with seeded noise. " }),
    "Whoever knows the seed, which stands in the settings, can compute the noise and take it away: against them no ε holds. For real data set ", el("code", { text: 'run.randomness = "os"' }), ".") : null;
}
// A row per client where there are few, else one per group of equal limits: each its own ε, never the largest for all.
function eachRows(d) {
  const c = d.clients;
  if (!d.guarantee || !c) return [];
  if (c.names && c.count <= FEW) return c.names.map((name, i) => ({ name, limit: c.limits[i], spent: c.spent ? c.spent[i] : null }));
  // of a group the least and the most that was spent, and of its limits: right for every member. Where nothing is priced yet a limit
  // is a bound, which a stand-in's curve is not
  const within = (limit, ends) => (ends === null ? limit === null : limit !== null && limit >= ends[0] && limit <= ends[1]);
  const spent = (ends) => (c.spent ? c.spent.filter((_, i) => within(c.limits[i], ends)) : ends || []).map((v) => (v === "inf" ? Infinity : v));
  return d.curves.map(({ name, clients, limits: ends }) => {
    const all = spent(ends), most = all.length ? Math.max(...all) : null;
    return { name: name || plural(clients, "client"), limit: ends && ends[1], from: ends && ends[0], spent: most === Infinity ? "inf" : most, least: all.length ? Math.min(...all) : null };
  });
}
// rounding up must not make a client that kept to its limit look as if it had not
const boundText = (spent, limit) => (typeof limit === "number" && Number(epsilon(spent)) > limit && spent <= limit + Math.min(1e-3, limit / 100) ? upward(limit) : epsilon(spent));
const spentText = ({ spent, limit, least, from }) => {
  if (spent === null) return "–";
  const most = boundText(spent, limit), low = typeof least === "number" ? boundText(least, from) : most;
  return low === most ? `≤ ${most}` : `${low} to ${most}`;
};
// figure spaces after the last digit put decimal points below each other
function aligned(texts) {
  const one = /^(≤ )?\d+(\.\d+)?$/, behind = (text) => (one.test(text) ? (text.split(".")[1] || "").length : 0), most = Math.max(...texts.map(behind));
  const spaces = (text) => (one.test(text) && most ? (text.includes(".") ? "" : "\u2008") + "\u2007".repeat(most - behind(text)) : "");
  return texts.map((text) => text + spaces(text));
}
function eachBlock(d) {
  const rows = eachRows(d), kinds = new Set(rows.map((row) => `${row.limit} ${row.spent}`));
  if (rows.length < 2 || kinds.size < 2) return null;
  const most = Math.max(...rows.flatMap((row) => [row.limit, row.spent]).filter((v) => typeof v === "number"), 1e-9);
  const share = (value) => (typeof value === "number" ? Math.max(0.5, 100 * Math.min(1, value / most)) : 0);
  const bar = (row) => {
    const box = el("span", { class: "allowed" }), used = el("span", { class: "used" });
    box.style.width = `${share(row.limit === null ? row.spent : row.limit)}%`;
    used.style.width = row.limit ? `${Math.min(100, 100 * share(row.spent) / share(row.limit))}%` : "100%";
    box.append(used);
    return el("td", { class: "bars", "aria-hidden": "true" }, box);
  };
  const limit = (row) => (row.from !== undefined && row.from !== null && row.from !== row.limit ? `${limitText(row.from)} to ${limitText(row.limit)}` : limitText(row.limit));
  const caption = `ε of each client, per ${d.guarantee.unit}`, about = `δ = ${delta(d.guarantee.delta)}. ${d.clients.shared ? "Spent in all runs of the shared ledger. " : ""}Each client’s noise follows from its own limit: none of these numbers stands for another.${d.finished ? "" : " What a round costs is charged before anybody answers, so the one that goes on is in them."}`;
  const own = rows.length === d.clients.count, texts = aligned(rows.map(spentText)), limits = aligned(rows.map(limit)), half = rows.length > ONE_COLUMN ? Math.ceil(rows.length / 2) : rows.length;
  const some = (start) => el("table", {}, el("caption", { class: "visually-hidden", text: start ? `${caption}, continued` : caption }),
    el("thead", {}, el("tr", {}, el("th", { scope: "col", text: own ? "client" : "clients" }), el("td", { class: "bars", "aria-hidden": "true" }), el("th", { scope: "col", class: "number", text: d.finished ? "ε spent" : "ε spent so far" }), el("th", { scope: "col", class: "number", text: "limit" }))),
    el("tbody", {}, rows.slice(start, start + half).map((row, i) => el("tr", {}, el("th", { scope: "row", text: row.name }), bar(row), el("td", { class: "number" }, el("b", { text: texts[start + i] })), el("td", { class: "number", text: limits[start + i] })))));
  const grouped = own ? "" : " Groups of clients, from the least to the most that one of them spent; each client’s own stands in the table of all clients.";
  return el("div", { class: "card each" }, el("h2", { text: caption }), el("p", { class: "note", text: about + grouped }), el("div", { class: half < rows.length ? "grid" : null }, some(0), half < rows.length ? some(half) : null));
}
function epsilonTile(d) {
  const spent = d.guarantee && d.guarantee.epsilon, name = d.guarantee && `ε spent, per ${d.guarantee.unit}`;
  if (!d.known) return tile("Privacy", "not known yet", "the run is at its beginning");
  if (!d.guarantee) return tile("Privacy", "none", "nothing is promised");
  if (!spent || !spent.max) return tile(name, "≤ limits", "each client’s own");
  if (epsilon(spent.min) === epsilon(spent.max)) return tile(name, `≤ ${epsilon(spent.max)}`, `every client, δ = ${delta(d.guarantee.delta)}`);
  return tile(name, `${epsilon(spent.min)} to ${epsilon(spent.max)}`, d.clients && d.clients.names && d.clients.count <= FEW ? "each client’s own is below" : "by groups of clients below; each client’s own under Clients");
}
