// Whose records count how much, where each client is drawn from at a rate of its own.
figure({ page: "run", section: "clients", order: 5, when: (d) => d.weights,
  chart: (d) => ({ title: "Share of the batch, client by client", note: "Each client’s share of the records that a round is expected to draw, beside its share of all records: where the lines part, a loose budget counts for more, and a tight one for less.", xLabel: "client, from the one drawn least often", xName: "client", format: percent, tick: percentTick, zero: true,
    series: [{ name: "share of the batch", x: d.weights.batch.map((_, i) => i + 1), y: d.weights.batch, index: 0 }, { name: "share of all records", x: d.weights.rows.map((_, i) => i + 1), y: d.weights.rows, index: 1 }] }) });
