// Who took part, and who can pay for no further round.
figure({ page: "run", section: "clients", order: 1, when: (d) => d.rounds.round.length,
  chart: (d) => ({ title: "Clients by round", raw: d.central, note: d.central ? "How many took part stays with the trusted server: the promise rests on it." : "Who took part, and who can pay for no further round.", format: whole, tick: whole, zero: true,
    series: [line(d, "cohort", "took part", 0), ...(has(d, "out_of_budget") ? [line(d, "out_of_budget", "out of budget", 1)] : [])] }) });
