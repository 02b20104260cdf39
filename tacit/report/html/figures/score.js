// Test metric by round; of several runs a line each.
figure({ page: "run", section: "learning", order: 1, when: (d) => has(d, "score"),
  chart: (d) => ({ title: `Test ${d.metric.name} by round`, note: `On the public test set.${d.metric.baseline === null ? "" : ` The majority-class baseline (or the mean) reaches ${fixed(4)(d.metric.baseline)}.`}`, format: fixed(4),
    ...(d.metric.share ? { tick: percentTick, top: 1 } : {}),
    series: [line(d, "score", `test ${d.metric.name}`, 0), ...(has(d, "backdoor_accuracy") ? [line(d, "backdoor_accuracy", "backdoor accuracy (not covered by ε)", 2)] : []),
      ...(d.metric.baseline === null ? [] : [{ name: BASELINE, x: d.rounds.round, y: d.rounds.round.map(() => d.metric.baseline), index: 1 }])] }) });
figure({ page: "several", section: "learning", order: 1, several: "score",
  chart: (d, band) => ({ title: `Test ${d.metric.name} by round`, note: band, level: d.metric.baseline === null ? null : [BASELINE, d.metric.baseline], format: fixed(4), ...(d.metric.share ? { tick: percentTick, top: 1 } : {}), wide: true, height: 320 }) });
