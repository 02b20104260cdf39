// What attacks reached: defences by attacks as a matrix, findings one by one, a strip of pictures. No ε covers any of it.
const NOT_COVERED = "not covered by ε";
const covered = (more) => el("p", { class: "note" }, el("span", { class: "raw", text: NOT_COVERED }), ` ${more}`);
const withEnds = ([value, low, high]) => [fixed(3)(value), low === null ? null : `${fixed(3)(low)} to ${fixed(3)(high)}`];
function matrixBlock(m) {
  const cell = (found, chance) => {
    if (found === null) return el("td", { class: "number", text: "–" });
    const [value, ends] = withEnds(found), made = el("td", { class: "number" }, el("b", { text: value }), ends ? el("span", { class: "ends", text: ends }) : null);
    // the tint is the share of the way from guessing to certainty; the number says the same
    if (chance !== null) made.style.background = `rgba(var(--heat),${(0.45 * Math.min(1, Math.max(0, (found[0] - chance) / (1 - chance)))).toFixed(3)})`;
    return made;
  };
  const caption = "What attacks reached, by defence";
  const made = el("table", { class: "matrix" }, el("caption", { class: "visually-hidden", text: caption }),
    el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "run" }), el("th", { scope: "col", class: "number", text: m.metric }), m.columns.map((c) => el("th", { scope: "col", class: "number", text: c.name })))),
    el("tbody", {}, m.rows.map((row) => el("tr", {}, el("th", { scope: "row", text: row.label }), cell(row.score, null), row.attacked.map((found, i) => cell(found, m.columns[i].chance))))));
  const auc = m.columns.some((c) => c.chance > 0), backdoor = m.columns.some((c) => c.chance === 0);
  return el("div", { class: "card" }, el("h3", { text: "Attacks × defences" }),
    covered(`Measured on a simulation. The stronger a cell’s colour, the more an attack reached.${auc ? " An AUC of 0.5 is guessing, 1 is certainty." : ""}${backdoor ? " A backdoor’s number is the share of test rows with the trigger that are taken for the attackers’ class." : ""} Ranges are 95 % intervals.`),
    el("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": caption }, made),
    el("p", { class: "note", text: "That an attack fails proves nothing: an ε is the promise, about honest clients, and DP is no robustness proof." }));
}
function stripBlock(strip, estimates) {
  const [colours, height, width] = strip.shape, gap = 2;
  const paint = (canvas, pictures) => {
    canvas.width = pictures.length * (width + gap) - gap; canvas.height = height;
    const g = canvas.getContext("2d");
    pictures.forEach((text, n) => {
      const bytes = atob(text), image = g.createImageData(width, height), area = width * height;
      for (let i = 0; i < area; i++) {
        // one colour is ink on paper, three are themselves
        for (let c = 0; c < 3; c++) image.data[4 * i + c] = colours === 1 ? 255 - bytes.charCodeAt(i) : bytes.charCodeAt(c * area + i);
        image.data[4 * i + 3] = 255;
      }
      g.putImageData(image, n * (width + gap), 0);
    });
  };
  return el("figure", { class: "card wide strip" }, el("figcaption", {}, el("h3", { text: "What was made of a client’s update" }),
    covered("Above the client’s records, below each the nearest of all reconstructions.")),
  strip.rows.map(([name, pictures]) => {
    const known = estimates.filter((one) => one.of === name).slice(0, 2).map((one) => `${one.name}: ${digits(one.value, 3)}`).join(", ");
    const canvas = el("canvas", { role: "img", "aria-label": `${name}: ${plural(pictures.length, "picture")}${known ? `; ${known}` : ""}` });
    paint(canvas, pictures);
    return el("div", { class: "pictures" }, el("p", {}, el("b", { text: name }), known ? el("span", { class: "note", text: ` ${known}` }) : null), canvas);
  }));
}
function findingBlock(found) {
  const titled = found.attack.charAt(0).toUpperCase() + found.attack.slice(1);
  const number = (v) => digits(v, 3);
  return [el("h3", { text: `${titled}: ${found.attacked}` }), covered("Measured on real members of a simulation. That an attack fails proves nothing."),
    found.notes.map((note) => el("p", { class: "note", text: note })),
    el("div", { class: "grid" },
      found.strip ? stripBlock(found.strip, found.estimates) : null,
      el("div", { class: "card" }, table(`What ${found.attack} found`, [{ name: "of" }, { name: "what" }, { name: "value", number: true }, { name: "95 % interval", number: true }],
        found.estimates.map((one) => [one.of, one.name, number(one.value), one.low === null || one.high === null ? "–" : `${number(one.low)} to ${number(one.high)}`]), { open: true, tall: found.estimates.length <= 20 }),
      found.more ? el("p", { class: "note", text: `${whole(found.more)} more are in attack-${found.attack}.json.` }) : null),
      found.plots.map((plot) => {
        const positive = (line) => line.x.map((x, i) => [x, line.y[i]]).every(([x, y]) => x > 0 && y > 0), log = plot.log;
        const kept = (line) => (log && !positive(line) ? line.x.map((_, i) => i).filter((i) => line.x[i] > 0 && line.y[i] > 0) : line.x.map((_, i) => i));
        const lines = plot.lines.map((line, n) => { const at = kept(line), of = (key) => (line[key] ? at.map((i) => line[key][i]) : null); return { name: line.name, x: of("x"), y: of("y"), low: of("low"), high: of("high"), index: line.name === "chance" ? 7 : n }; });
        const whole_steps = lines.every((line) => line.x.every((x) => Number.isInteger(x)));
        const share = (v) => digits(v, 2), made = chart({ title: plot.title, note: `${plot.y}, ${NOT_COVERED}.`, xLabel: plot.x, xlog: log, log, real: !whole_steps, xTick: whole_steps ? undefined : share, xFormat: whole_steps ? undefined : share, format: number, series: lines.filter((line) => line.x.length) });
        return made;
      }))];
}
function attackPage(d) {
  document.getElementById("page").replaceChildren(...[
    el("h1", {}, `${d.name} `, el("span", { class: "badge warn", text: "attacked" })), el("p", { class: "lead", text: `${d.folder} · what somebody learns, or does, who wants to; in a simulation` }),
    d.findings.map((found, n) => section(`attack-${n + 1}`, found.attack.charAt(0).toUpperCase() + found.attack.slice(1), findingBlock(found))), attackFoot(d),
  ].flat());
}
function matrixPage(d) {
  document.getElementById("page").replaceChildren(...[
    el("h1", { text: d.name }), el("p", { class: "lead", text: d.words }), d.matrix ? section("attacks", "Attacks", matrixBlock(d.matrix)) : el("p", { text: "Nothing has been attacked yet." }),
    notesBlock(d.notes), attackFoot(d)].filter(Boolean));
}
const attackFoot = (d) => el("footer", {}, el("p", { text: `No number on this page is covered by any ε: attacks are told who is a member, and answers carry no noise. Made by tacit ${d.tacit}. This file asks for nothing from any network.` }));
