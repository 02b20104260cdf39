// Test loss by round, with the clients' own where it is known.
figure({ page: "run", section: "learning", order: 2, when: (d) => has(d, "score"),
  chart: (d) => ({ title: "Loss by round", note: has(d, "train_loss") ? "The test loss is public; the clients' train loss carries no noise and is not covered by ε." : null, format: fixed(4),
    series: [line(d, "loss", "test loss", 0), ...(has(d, "train_loss") ? [line(d, "train_loss", "train loss (raw)", 1)] : []), ...baselineLoss(d)] }) });
figure({ page: "several", section: "learning", order: 2, several: "loss", chart: (d, band) => ({ title: "Test loss by round", note: band, format: fixed(4) }) });
// what the shares of the classes have as their loss; only where the loss is the log loss, as its last value tells
function baselineLoss(d) {
  const known = d.metric.all.find(([name]) => name === "log loss"), last = (d.rounds.loss || []).slice(-1)[0];
  return known && known[3] !== null && Math.abs(known[1] - last) < 1e-3 * (1 + last) ? [{ name: BASELINE, x: d.rounds.round, y: d.rounds.round.map(() => known[3]), index: 7, wide: 1.2 }] : [];
}
