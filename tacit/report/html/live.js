// Start, and, when served by `tacit report --live`, ask the local server for what is new.
const EVERY = 1500;
function merge(data, next) {
  const rounds = { round: data.rounds.round.slice(0, next.since).concat(next.rounds.round) };
  for (const key of new Set([...Object.keys(data.rounds), ...Object.keys(next.rounds)])) {
    if (key === "round") continue;
    const before = data.rounds[key] || data.rounds.round.map(() => null), after = next.rounds[key] || next.rounds.round.map(() => null);
    rounds[key] = before.slice(0, next.since).concat(after);
  }
  return { ...next, rounds, since: 0 };
}
function start() {
  let data = JSON.parse(document.getElementById("data").textContent), update = null, shape = "";
  const shapeOf = (d) => `${d.kind} ${d.curves && d.curves.length} ${FIGURES.map((one) => one.page === d.kind && (!one.when || Boolean(one.when(d))))}`;
  const show = () => {
    document.getElementById("nav").replaceChildren();
    update = { run: runPage, several: severalPage, attack: attackPage, matrix: matrixPage, search: searchPage, site: sitePage }[data.kind](data);
    shape = shapeOf(data);
    letGo();
  };
  theme();
  show();
  document.documentElement.dataset.ready = "yes";
  if (!data.live) return;
  let mark = "", failures = 0;
  const ask = async () => {
    try {
      const since = data.kind === "run" ? data.rounds.round.length : 0;
      const answer = await fetch(`data?since=${since}&mark=${encodeURIComponent(mark)}`, { cache: "no-store" });
      if (answer.status === 200) {
        const next = await answer.json();
        mark = answer.headers.get("X-Tacit-Mark") || "";
        data = data.kind === "run" && next.kind === "run" ? merge(data, next) : next;
        const place = window.scrollY;
        if (update && shapeOf(data) === shape) { update(data); letGo(); } else { show(); window.scrollTo({ top: place, behavior: "instant" }); }
      }
      failures = 0;
      document.querySelectorAll(".banner.lost").forEach((node) => node.remove());
      if (data.finished) { document.documentElement.dataset.live = "ended"; return; }
    } catch (error) {
      failures += 1;
      if (failures === 2) document.getElementById("page").prepend(el("p", { class: "banner bad lost", role: "status", text: "The server of this page does not answer: it was stopped, or the machine sleeps. What stands here is the last it said." }));
    }
    setTimeout(ask, EVERY);
  };
  setTimeout(ask, EVERY);
}
start();
