// How much of what was released is signal.
figure({ page: "run", section: "noise", order: 2, when: (d) => has(d, "signal_to_noise"),
  chart: (d) => ({ title: "Signal-to-noise by round", note: d.central ? "|signal| / |noise| of the noised sum that the server releases: it costs no privacy." : "|signal| / |noise| of a client's update, estimated from what was released: it costs no privacy. The band runs from the lowest to the highest client; 0 means that noise hides the signal.", format: fixed(3), zero: true,
    series: [line(d, "signal_to_noise", d.central ? "sum of the round" : "median client", 0, { low: d.rounds.signal_to_noise_low, high: d.rounds.signal_to_noise_high })] }) });
figure({ page: "several", section: "learning", order: 3, several: "signal_to_noise", chart: () => ({ title: "Signal-to-noise by round", note: "Median client of each run, from released updates.", format: fixed(3), zero: true }) });
