// Epsilon spent by round, a curve for each group of clients.
figure({ page: "run", section: "privacy", order: 1, when: (d) => d.curves.length,
  chart: (d) => {
    const finite = d.curves.map((c) => c.limit).filter((v) => v), wide = finite.length && Math.max(...finite) / Math.min(...finite) > 12;
    return { title: `ε spent by round, per ${d.guarantee.unit}`, wide: true, height: 300, log: wide, zero: !wide, xName: "after round", format: epsilon,
      note: `${d.guarantee.relation}; against ${d.guarantee.adversary.replace(/,$/, "")}; δ = ${delta(d.guarantee.delta)}. Dotted lines are limits, where they are near enough to be drawn. Exact at the marks; between two marks the line is an upper bound.`,
      series: d.curves.map((c, i) => ({ name: groupName(c), x: c.rounds, y: c.epsilon, limit: c.limit, bound: true, index: i })) };
  } });
function groupName(curve) {
  const limit = curve.limits === null ? "no limit" : curve.limits[0] === curve.limits[1] ? `limit ${limitText(curve.limits[0])}` : `limits ${limitText(curve.limits[0])} to ${limitText(curve.limits[1])}`;
  if (curve.name) return `${curve.name} (${limit})`;
  const which = curve.limits && curve.limits[0] !== curve.limits[1] ? `; shown: ${limitText(curve.limit)}` : "";
  return `${plural(curve.clients, "client")}, ${limit}${which}`;
}
