// The share of gradients or updates that were clipped.
figure({ page: "run", section: "noise", order: 1, when: (d) => has(d, "clipped"),
  chart: (d) => ({ title: "Clip fraction by round", raw: true, note: "The share of gradients or updates that were longer than the clip norm.", format: percent, tick: percentTick, zero: true, top: 1, series: [line(d, "clipped", "clipped", 0)] }) });
figure({ page: "several", section: "learning", order: 4, several: "clipped", chart: () => ({ title: "Clip fraction by round", raw: true, format: percent, tick: percentTick, zero: true, top: 1 }) });
