// Who ran out of budget, and when.
figure({ page: "run", section: "clients", order: 2, block: droppedBlock });
function droppedBlock(d) {
  const out = (d.rounds.out_of_budget || []).slice(-1)[0] || 0, early = d.dropped.reduce((sum, [, names]) => sum + names.length, 0);
  let words = "Nobody ran out of budget: every client could pay for every round that it was drawn for.";
  if (early) words = `${plural(early, "client")} ran out of budget before the planned end: another round would have taken each past its limit, so the ledger let it take part no more.`;
  else if (out && d.done >= d.planned) words = `Nobody ran out of budget before the end. ${plural(out, "client")} could pay for no round beyond the last: the budget was spread to end there.`;
  else if (d.central && d.stopped === "budget") words = `All ${plural(out, "client")} pay for every round, drawn or not; after round ${whole(d.done)} they could not pay for another.`;
  if (!d.known) words = "Nobody has been asked for anything yet.";
  else if (!d.guarantee) words = "Nobody ran out of budget: without a promise there is none.";
  return el("div", { class: "card" }, el("h3", { text: "Who ran out of budget, and when" }), el("p", { text: words }),
    early ? table("Clients that ran out of budget", [{ name: "out from round" }, { name: "clients" }],
      d.dropped.map(([round, names]) => [whole(round), names.length > 40 ? `${names.slice(0, 40).join(", ")} and ${names.length - 40} more` : names.join(", ")]), { open: true }) : null,
    d.refused.count ? [el("p", {}, el("span", { class: "raw", text: "from raw data: not covered by ε" }), ` The server could not use ${plural(d.refused.count, "message")} and counted each as a zero update.`),
      table("Messages refused", [{ name: "round" }, { name: "client" }, { name: "why", prose: true }], d.refused.some.map(([round, name, why]) => [whole(round), name, why]), { summary: d.refused.count > d.refused.some.length ? `The first ${d.refused.some.length} of them` : "Which, and why" })] : null);
}
