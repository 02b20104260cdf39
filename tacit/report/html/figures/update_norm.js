// The length of the server's step.
figure({ page: "run", section: "noise", order: 3, when: (d) => has(d, "update_norm"),
  chart: (d) => ({ title: "Length of the model's step by round", note: "The norm of the change that the server made to the model.", format: (v) => digits(v), zero: true, series: [line(d, "update_norm", "step", 0)] }) });
