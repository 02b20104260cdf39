// What an audit found: promised, shown and measured on one line, never as one number; and how the canaries fared.
function numberLine(group) {
  const endless = (value) => (value === null ? Infinity : value), finite = (value) => (Number.isFinite(value) ? value : 0); // without noise there is no epsilon
  const measured = { low: endless(group.measured.low), epsilon: endless(group.measured.epsilon), high: group.measured.high };
  const known = Math.max(group.promised, finite(measured.low), finite(measured.epsilon)), top = measured.high === null ? 1.2 * known : measured.high, most = 1.12 * Math.max(known, top);
  const said = `promised at most ${epsilon(group.promised)}; shown at least ${least(group.no_assumption)} without assumption, ${least(group.within_family)} within the ledger's family; measured ${digits(measured.epsilon, 4)}, at least ${least(measured.low)}`;
  const plot = el("div", { class: "plot" });
  function draw() {
    const wide = Math.max(240, plot.clientWidth || 480), roomy = wide > 520, x = (value) => 16 + (Math.min(value, most) / most) * (wide - 32);
    const mark = (value, name, up, ink) => [
      svg("line", { x1: x(value), x2: x(value), y1: up ? 26 : 46, y2: up ? 46 : 66, stroke: ink, "stroke-width": 2.5 }),
      roomy ? svg("text", { x: Math.min(Math.max(x(value), 64), wide - 64), y: up ? 18 : 82, "text-anchor": "middle", text: name }) : null];
    plot.replaceChildren(svg("svg", { class: "chart", viewBox: `0 0 ${wide} 92`, height: 92, role: "img", "aria-label": said },
      svg("line", { class: "axis", x1: 16, x2: wide - 16, y1: 46, y2: 46, "stroke-width": 2 }),
      svg("rect", { x: x(measured.low), y: 41, width: Math.max(2, x(top) - x(measured.low)), height: 10, fill: colour(0), opacity: 0.35 }),
      mark(group.promised, `promised ≤ ${epsilon(group.promised)}`, true, "var(--ink)"),
      mark(measured.low, `measured ≥ ${least(measured.low)}`, false, colour(0)),
      group.within_family > 0 ? mark(group.within_family, `shown, family ≥ ${least(group.within_family)}`, true, colour(1)) : null,
      group.no_assumption > 0 ? mark(group.no_assumption, `shown, no assumption ≥ ${least(group.no_assumption)}`, false, colour(1)) : null));
  }
  follow(plot, draw);
  return el("figure", { class: "card wide" }, el("h3", { text: `${plural(group.clients, "client")} promised at most ${epsilon(group.promised)}` }), plot,
    el("p", { class: "note", text: `${said}. ${whole(group.canaries)} canaries, 95 %.` }));
}
function auditCharts(picture) {
  const line = (name, x, y, index, more) => ({ name, x, y, index, ...more });
  const { roc, scores, by_round: rounds, layers } = picture, share = (v) => digits(v, 2);
  return [
    chart({ title: "Canaries called in", note: "Each point stands for ten canaries out or more; by chance a sound run lies a little above the line that its ledger allows.", xLabel: "share of canaries out that are called in", xFormat: share, raw: true, xlog: true, log: true, xTick: share, tick: share, format: (v) => digits(v, 3),
      series: [line("guessed", roc.false, roc.true, 0), line("the most that is promised", roc.false, roc.most, 7)] }),
    chart({ title: "Scores", note: "Dotted lines are what the price predicts.", xLabel: "log likelihood ratio of having taken part", xFormat: share, raw: true, real: true, zero: true, xTick: share, format: (v) => digits(v, 3),
      series: [line("in", scores.at, scores.in, 0), line("out", scores.at, scores.out, 1), line("in, predicted", scores.at, scores.expected_in, 4), line("out, predicted", scores.at, scores.expected_out, 5)] }),
    chart({ title: "Epsilon by round", xLabel: "round", zero: true, format: (v) => digits(v, 4),
      series: [line("promised", rounds.round, rounds.promised, 7), line("measured", rounds.round, rounds.measured, 0, { low: rounds.low, high: rounds.high })] }),
    layers.length ? el("div", { class: "card" }, el("h3", { text: "Noise over what is priced" }), table("Noise over what is priced, by layer",
      [{ name: "layer" }, { name: "ratio", number: true }, { name: "at least", number: true }, { name: "at most", number: true }],
      layers.map(([name, value, low, most]) => [name, fixed(3)(value), fixed(3)(low), fixed(3)(most)]), { open: true })) : null,
  ];
}
function auditBlock(audit) {
  const bad = audit.rejected;
  return [
    el("p", { class: bad ? "banner bad" : "note", text: audit.sentence }),
    audit.against ? el("p", { class: "note", text: `Every epsilon here, at delta = ${delta(audit.delta)}: ${audit.against}.` }) : null,
    (audit.notes || []).map((note) => el("p", { class: "note", text: note })),
    el("p", { class: "note", text: "Promised is the theorem, and the only number that protects anybody. Shown is what an attacker reached in this run. Of what was measured the lower limit is the alarm; that the estimate or its band lies above the promise means nothing." }),
    audit.groups.length > 6 ? el("p", { class: "note", text: `Of ${audit.groups.length} groups six are shown; audit.json has all of them.` }) : null,
    el("div", { class: "grid" }, audit.groups.slice(0, 6).map(numberLine), audit.pictures.slice(0, 1).map(auditCharts)),
  ];
}
