"use strict";
// Small words for elements and numbers. Text enters the page by textContent only: nothing from a file becomes markup.
const SVG = "http://www.w3.org/2000/svg";
function put(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key === "prose") node.append(...prose(value));
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of (children || []).flat(9)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
// a sentence whose `commands` are set as code: of an even split every second part stood between two backticks
function prose(text) {
  const parts = String(text).split("`");
  return parts.length % 2 ? parts.map((part, i) => (i % 2 ? el("code", { text: part }) : part)) : [String(text)];
}
const fullStop = (text) => (/[.?!]$/.test(text) ? text : `${text}.`);
const el = (name, attributes, ...children) => put(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => put(document.createElementNS(SVG, name), attributes, children);
let counter = 0;
const fresh = (word) => `${word}-${++counter}`;

function digits(value, most) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(most || 4)));
}
const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
const fixed = (places) => (value) => (value === null || value === undefined ? "–" : value.toFixed(places));
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
// an epsilon is rounded up, never in our favour; below a tenth to three digits that count (shown of tacit/privacy/guarantee.py)
function epsilon(value) {
  if (value === null || value === undefined || value === "inf") return value === "inf" ? "∞" : "–";
  if (!(value > 0 && value < 0.1)) return (Math.ceil(value * 1000 - 1e-6) / 1000).toFixed(3);
  const near = Number(value.toPrecision(3));
  const shown = near < value ? Number((near + 10 ** (Math.floor(Math.log10(value)) - 2)).toPrecision(3)) : near;
  return shown < 1e-4 ? shown.toExponential() : String(shown).padEnd(5, "0");
}
// a lower bound is rounded down: nobody is accused of more than was shown
const least = (value) => (value === null || value === undefined ? "∞" : digits(value === 0 ? 0 : Math.floor(value * 10 ** (2 - Math.floor(Math.log10(value)))) / 10 ** (2 - Math.floor(Math.log10(value))), 3));
// five digits, rounded up: what was spent within a limit is never shown as more than the limit
const upward = (value) => { const unit = 10 ** (Math.floor(Math.log10(value)) - 4); return String(Number((Math.ceil(value / unit - 1e-6) * unit).toPrecision(6))); };
const limitText = (value) => (typeof value === "string" ? value : value === null || value === undefined ? "no limit" : value >= 1e6 ? digits(value, 5) : value < 1e-3 ? epsilon(value) : upward(value));
function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${Number(value.toPrecision(3))} ${unit}`;
    value /= 1000;
  }
  return `${Number(value.toPrecision(3))} TB`;
}
function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.1) return `${Number((value * 1000).toPrecision(3))} ms`;
  if (value < 90) return `${Number(value.toPrecision(3))} s`;
  return value < 5400 ? `${(value / 60).toFixed(1)} min` : `${(value / 3600).toFixed(1)} h`;
}
// Rounded up to six digits; what binary fractions add in the thirteenth is not counted (shown_delta of tacit/privacy/guarantee.py).
function delta(value) {
  const exact = Number(value.toPrecision(12)), near = Number(exact.toPrecision(6));
  const shown = near < exact ? Number((near + 10 ** (Math.floor(Math.log10(exact)) - 5)).toPrecision(6)) : near;
  return shown && shown < 1e-3 ? shown.toExponential() : String(shown);
}
const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;

function section(id, title, ...children) {
  document.getElementById("nav").append(el("a", { href: `#${id}`, text: title }));
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title`, text: title }), children);
}
// A table whose rows are made when it is first looked at.
function table(caption, heads, rows, options) {
  // on a phone a wide table's rows become cards (.stack): the roles say what the style no longer does
  const wide = heads.length > 3, role = (name) => (wide ? name : null), body = el("tbody", { role: role("rowgroup") });
  const made = el("table", { class: wide ? "stack" : null, role: role("table") }, el("caption", { class: "visually-hidden", text: caption }),
    el("thead", { role: role("rowgroup") }, el("tr", { role: role("row") }, heads.map((head) => el("th", { scope: "col", role: role("columnheader"), class: head.number ? "number" : null, text: head.name })))), body);
  const fill = () => {
    if (body.firstChild) return;
    for (const row of typeof rows === "function" ? rows() : rows)
      body.append(el("tr", { role: role("row") }, row.map((cell, i) => (i === 0 && !(options && options.plain)
        ? el("th", { scope: "row", role: role("rowheader"), text: cell })
        : el("td", { role: role("cell"), class: heads[i].number ? "number" : null, "data-label": wide ? heads[i].name : null, [heads[i].prose ? "prose" : "text"]: cell })))));
  };
  const box = el("div", { class: `scroll${options && options.tall ? " tall" : ""}`, tabindex: "0", role: "region", "aria-label": `${caption}, table` }, made);
  if (options && options.open) { fill(); return box; }
  const details = el("details", {}, el("summary", { text: (options && options.summary) || `${caption}, as a table` }), box);
  details.addEventListener("toggle", fill);
  return details;
}
function terms(pairs) {
  return el("dl", {}, pairs.filter((pair) => pair[1] !== null && pair[1] !== undefined).map(([name, value]) =>
    [el("dt", { text: name }), el("dd", {}, Array.isArray(value) ? el("ul", {}, value.map((one) => el("li", { text: one }))) : String(value))]));
}
// The page's theme: what the system says, until the reader says otherwise.
function theme() {
  const root = document.documentElement, button = document.getElementById("theme");
  const keep = (value) => { try { localStorage.setItem("tacit-theme", value); } catch (error) { /* a file may have no storage */ } };
  const known = () => { try { return localStorage.getItem("tacit-theme"); } catch (error) { return null; } };
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  const say = () => button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
  if (known() === "dark" || known() === "light") root.dataset.theme = known();
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; keep(root.dataset.theme); say(); redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { say(); redraw(); });
  say();
}
// What draws itself again, when its element changes its width or the theme changes. An element that has left the page is let go.
const followed = new Map();
const widths = new ResizeObserver((changes) => changes.forEach((change) => { const draw = followed.get(change.target); if (draw) draw(false); }));
function follow(node, draw) {
  let width = 0;
  followed.set(node, (anew) => { if (anew || node.clientWidth !== width) { width = node.clientWidth; draw(); } });
  widths.observe(node);
}
const redraw = () => followed.forEach((draw) => draw(true));
function letGo() {
  for (const node of [...followed.keys()]) if (!node.isConnected) { widths.unobserve(node); followed.delete(node); }
}
// A figure is one file in figures/: the page and the section that it stands in, its place there, when there is one, and what it is, a
// `chart` (made new from a live run's data) or a `block`. Of a run's rounds every number is in d.rounds under its own name; of several
// runs `several` names the number that is drawn. Of more than 1,000 rounds d.rounds has every d.thinned-th and the last: what is summed
// over rounds is summed in collect.py. The sections with figures are, of `run`: learning, privacy, noise, clients, costs; of
// `several`: learning, costs.
const FIGURES = [];
const figure = (one) => FIGURES.push(one);
const figuresOf = (page, section, d) => FIGURES.filter((one) => one.page === page && one.section === section && (!one.when || one.when(d))).sort((a, b) => a.order - b.order);
const roundly = (spec) => ({ xLabel: "round", ...spec });
const BASELINE = "majority-class baseline";
// `drawn` and `slots` collect what a live page updates
function placed(one, d, drawn, slots) {
  if (one.chart) {
    const made = chart(roundly(one.chart(d)));
    drawn.push([one, made]);
    return made;
  }
  const node = el("div", { class: "slot" }, one.block(d));
  if (!one.still) slots.push([node, one.block]);
  return node;
}
const colour = (index) => `var(--s${index % 8})`;
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const dash = (index) => DASHES[Math.floor(index / 2) % 4] || null;
