// A deployment as its server sees it: who answered, who refused, who is out, and why. Nothing here comes from rows.
const TONES = { answered: "ok", "has taken part": "ok", "no absence": "ok", here: "ok", refused: "bad", out: "bad", absent: "bad", "out of budget": "warn", awaited: "warn" };
const MARKS = { ok: "✓", bad: "✕", warn: "…" };
const STATES = { waiting: "The server is waiting for its sites", running: "The run goes on", finished: "The run has ended", failed: "The run has stopped" };
function stripOf(site, first) {
  const step = 7, tall = 16, missed = site.rounds.map((came, i) => (came ? null : first + i)).filter(Boolean);
  return svg("svg", { class: "strip", width: Math.max(step, step * site.rounds.length), height: tall, viewBox: `0 0 ${Math.max(step, step * site.rounds.length)} ${tall}`, role: "img",
    "aria-label": missed.length ? `missing from ${plural(missed.length, "round")}: ${missed.slice(-12).join(", ")}` : "missing from no round" },
  site.rounds.map((came, i) => (came ? svg("rect", { x: step * i, y: 2, width: step - 2, height: 12, rx: 1, fill: "var(--s2)" }) : svg("path", { d: `M${step * i},5l5,6m0,-6l-5,6`, stroke: "var(--bad)", "stroke-width": 2 }))));
}
function sitesBlock(d) {
  const s = d.sites;
  if (!s) return null;
  const count = (state) => s.sites.filter((site) => site.state === state).length, running = s.state === "running" && s.round;
  const heads = ["site", "state", "why", "ε limit", "its ledger says", "rounds missed", s.last > s.first ? `rounds ${whole(s.first)} to ${whole(s.last)}` : "rounds"];
  const caption = "Sites", made = el("table", { class: "sites stack", role: "table" }, el("caption", { class: "visually-hidden", text: caption }),
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads.map((name, i) => el("th", { scope: "col", role: "columnheader", class: i > 2 && i < 6 ? "number" : null, text: name })))),
    el("tbody", { role: "rowgroup" }, s.sites.map((site) => {
      const tone = TONES[site.state], cell = (i, more, ...inside) => el("td", { role: "cell", "data-label": heads[i], ...more }, ...inside);
      return el("tr", { role: "row" }, el("th", { scope: "row", role: "rowheader", text: site.name }),
        cell(1, {}, el("span", { class: `badge ${tone || ""}` }, tone ? el("span", { "aria-hidden": "true", text: `${MARKS[tone]} ` }) : null, site.state)), cell(2, { class: site.why ? "why" : "why empty", prose: site.why || "–" }),
        cell(3, { class: "number", text: site.declared ? limitText(site.limit) : "–" }), cell(4, { class: "number", text: site.spent === null ? "–" : `ε ≤ ${epsilon(site.spent)}` }), cell(5, { class: "number", text: whole(site.missed) }),
        cell(6, {}, site.rounds.length ? stripOf(site, s.first) : "–"));
    })));
  const words = `${fullStop(`${STATES[s.state]}${s.state === "failed" || s.state === "waiting" ? `: ${s.text}` : ""}${running ? `; ${s.sites.length - count("awaited") - count("out")} of ${plural(s.sites.length, "site")} have spoken in round ${whole(s.round)}` : ""}`)} The server said so at ${s.time}.`;
  return el("div", { class: "card" }, el("p", { class: s.state === "failed" ? "banner bad" : null, prose: words }),
    el("p", { class: "note", text: `The server’s view: reasons are in the sites’ own words, and what a site’s ledger says of itself nobody checks.${s.drawn ? " Chance decides who is asked, and that stays a secret of the server: only absences are named." : ""} In a strip a bar is a round without an absence, a cross one that the site was missing from. What a site was promised and gets from joining is on its own page, which stays with it: tacit report SITE, in its folder.` }),
    el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": `${caption}, table` }, made),
    s.absences.count ? table("Absences", [{ name: "round", number: true }, { name: "site" }, { name: "why", prose: true }], s.absences.some.map(([round, name, why]) => [whole(round), name, why]).reverse(), { plain: true, summary: `${plural(s.absences.count, "absence")}, with reasons` }) : null);
}
