// Bytes until each round.
figure({ page: "run", section: "costs", order: 1, when: (d) => d.rounds.round.length,
  chart: (d) => ({ title: "Traffic until each round", raw: d.central, note: "Bytes that were really serialised, over all clients.", format: bytes, tick: bytes, zero: true,
    series: [line(d, "uplink_total", "up", 0), line(d, "downlink_total", "down", 1)] }) });
figure({ page: "several", section: "costs", order: 1, several: "uplink_bytes", chart: () => ({ title: "Uploaded until each round", alike: true, format: bytes, tick: bytes, zero: true }) });
figure({ page: "several", section: "costs", order: 2, several: "downlink_bytes", chart: () => ({ title: "Downloaded until each round", alike: true, format: bytes, tick: bytes, zero: true }) });
