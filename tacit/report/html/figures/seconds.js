// Seconds by round, and by stage over the whole run.
figure({ page: "run", section: "costs", order: 2, when: (d) => d.rounds.round.length,
  chart: (d) => ({ title: "Seconds by round", format: seconds, tick: seconds, zero: true, series: [line(d, "seconds", "whole round", 0), ...(has(d, "seconds_train") ? [line(d, "seconds_train", "of these, training", 1)] : [])] }) });
figure({ page: "run", section: "costs", order: 3, when: (d) => d.rounds.round.length, block: (d) => stagesBlock([d]) });
figure({ page: "several", section: "costs", order: 3, block: (d) => stagesBlock(d.entries) });
