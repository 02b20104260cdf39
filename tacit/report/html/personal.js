// What every client gets alone, from the common model and from its own: a dumbbell by client, beside its epsilon.
const HOMES = ["alone", "global", "personalised"];
const MOST_BELLS = 60;
// `spec`: title, note, names, models (of each: [value, interval] by home), a table.
function dumbbells(spec) {
  const shown = spec.models.slice(0, MOST_BELLS), values = shown.flat().map(([value]) => value), step = 22, form = fixed(3), name = (i) => spec.names[i];
  const least = Math.min(...values), most = Math.max(...values), spare = 0.06 * (most - least) || 0.01, low = least - spare, high = most + spare;
  const said = shown.slice(0, 12).map((models, i) => `${name(i)}: ${HOMES.map((home, k) => `${home} ${form(models[k][0])}`).join(", ")}`).join("; ");
  const plot = el("div", { class: "plot" });
  function draw() {
    const wide = Math.max(240, plot.clientWidth || 640), left = Math.min(0.4 * wide, 16 + 6.7 * Math.max(...shown.map((_, i) => name(i).length))), tall = step * shown.length + 30;
    const x = (value) => left + 8 + ((value - low) / (high - low)) * (wide - left - 24), most = Math.floor((left - 12) / 6.7);
    const bell = (models, i) => {
      const y = step * i + 14, ends = models.map(([value]) => x(value)), text = name(i);
      return [svg("text", { x: left - 4, y: y + 4, "text-anchor": "end", text: text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text }),
        svg("line", { x1: Math.min(...ends), x2: Math.max(...ends), y1: y, y2: y, stroke: "var(--soft)", "stroke-width": 3, opacity: 0.45 }),
        models.map(([value], k) => marker(k, x(value), y, 5, colour(k)))];
    };
    plot.replaceChildren(svg("svg", { class: "chart", viewBox: `0 0 ${wide} ${tall}`, height: tall, role: "img", "aria-label": `${spec.title}. ${said}` },
      ticks(low, high, tickCount(wide - left)).map((v) => [svg("line", { class: "gridline", x1: x(v), x2: x(v), y1: 4, y2: tall - 22 }),
        svg("text", { x: x(v), y: tall - 6, "text-anchor": "middle", text: digits(v, 3) })]),
      shown.map(bell)));
  }
  follow(plot, draw);
  const legend = el("ul", { class: "legend", "aria-label": "Models" }, HOMES.map((home, k) => el("li", { class: "item" },
    svg("svg", { width: 14, height: 12, "aria-hidden": "true", focusable: "false" }, marker(k, 7, 6, 4, colour(k))), el("span", { text: home }))));
  return el("figure", { class: "card wide" }, el("figcaption", {}, el("h3", { text: spec.title }),
    el("p", { class: "note" }, el("span", { class: "raw", text: "from raw data: not covered by ε" }), ` ${spec.note}${spec.models.length > shown.length ? ` The first ${shown.length} of ${spec.models.length} are drawn.` : ""}`)),
  plot, legend, spec.table);
}
const valueEnds = ([value, interval]) => `${fixed(3)(value)}${interval.length ? ` (${fixed(3)(interval[0])} to ${fixed(3)(interval[1])})` : ""}`;
const gapEnds = ([value, interval]) => `${signed(value)}${interval.length ? ` (${signed(interval[0])} to ${signed(interval[1])})` : ""}`;
function byClient(one) {
  const heads = [{ name: "client" }, { name: "ε limit", number: true }, { name: "trained on", number: true }, { name: "own rows", number: true }, ...HOMES.map((home) => ({ name: `${home}, 95 % over own rows`, number: true }))];
  return dumbbells({ title: `${one.metric} of each client on its own rows`, note: "On rows that each client kept for this and trained on never, from the tightest ε to the loosest.",
    names: one.clients.map(([name, limit]) => `${name}, ε ${limitText(limit)}`), models: one.models,
    table: table(`${one.metric} on own rows`, heads, () => one.models.map((models, i) => [one.clients[i][0], limitText(one.clients[i][1]), whole(one.clients[i][2]), whole(one.clients[i][3]), ...models.map(valueEnds)])) });
}
// of a comparison: a dumbbell by setting
function homesBlock(d) {
  const h = d.homes, over = h.seeds > 2 ? `${d.confidence} % over seeds` : h.seeds === 1 ? "95 % over kept rows" : "none, of two seeds";
  return dumbbells({ title: `${h.metric} on clients’ own rows, setting by setting`, names: h.names, models: h.models,
    note: `Mean over clients by rows that each kept and trained on never: alone is what a client makes without the others, global is the model that they train, personalised is what it makes of that on its machine, which stays there and has no ε. Ranges: ${over}. Choosing by these numbers is choosing by private rows.`,
    table: table("Personalised models by setting", [{ name: "setting" }, ...HOMES.map((home) => ({ name: home, number: true })), { name: "personalised − alone", number: true }, { name: "personalised − global", number: true }],
      h.models.map((models, i) => [h.names[i], ...models.map(valueEnds), ...h.gaps[i].map(gapEnds)]), { open: true, tall: true }) });
}
// the same client by client, of one run at a time: another seed may deal the rows out to other clients
function homesByClient(runs) {
  const place = el("div", {}), id = fresh("setting"), choose = el("select", { id }, runs.map((run, i) => el("option", { value: String(i), text: run.label })));
  const show = () => place.replaceChildren(byClient(runs[Number(choose.value)].told));
  choose.addEventListener("change", () => { show(); letGo(); });
  show();
  return el("div", { class: "chosen" }, el("p", {}, el("label", { for: id, text: "Client by client, beside each ε, for " }), choose), place);
}
function personalBlock(personal) {
  const known = personal.told.filter((one) => one.models.length);
  return [
    el("p", { class: "note", text: personal.during ? `Each client's personalised model (${personal.kind}) was kept from round to round and is made of what it sent${personal.promised ? ": it has the noise, and the ε, of that" : ", of which nothing is promised: it has no ε and must not be published"}. Alone is what the same client makes alone, without noise, of the model as it was before the first round: it has no ε and must not be published.` : `Each client's personalised model (${personal.kind}) was made on its machine from the global one, without noise, in ${seconds(personal.seconds)} for all clients; alone is what the same client makes of the model as it was before the first round${personal.stay ? `, and ${plural(personal.stay, "client")} kept that, because its own training rows speak for it` : ""}. The global model has its ε. A personalised model has none: it stays at home and must not be published.` }),
    known.length ? el("div", { class: "card" }, el("h3", { text: "Mean over clients, by their own rows" }), el("p", { class: "note" }, el("span", { class: "raw", text: "from raw data: not covered by ε" })),
      table("Personalised models", [{ name: "metric" }, ...HOMES.map((name) => ({ name, number: true })), { name: "personalised − alone, 95 % over rows", number: true }, { name: "personalised − global, 95 % over rows", number: true }],
        known.map(({ metric, means }) => [metric, ...means.slice(0, 3).map(([value]) => fixed(4)(value)), ...means.slice(3).map(gapEnds)]), { open: true })) : null,
    el("p", { class: "note" }, el("strong", { text: "Was it worth joining? " }), `By each client's own rows the model to use is ${personal.use.map((count, k) => [count, HOMES[k]]).filter(([count]) => count).map(([count, home]) => `${home} for ${count}`).join(", ")}.`),
    personal.untold.length ? el("p", { class: "note", text: `The own rows of ${plural(personal.untold.length, "client")} cannot tell (there are none, or all are of one class): ${personal.untold.slice(0, 40).join(", ")}${personal.untold.length > 40 ? ", …" : ""}.` }) : null,
    el("div", { class: "grid" }, known.map(byClient)),
  ];
}
