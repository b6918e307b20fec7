"use strict";
// The pictures and tables of a report. The data are in the page; nothing is loaded from elsewhere.
let data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set(); // names of groups that the reader switched off
const chosen = { run: 0, way: null, frame: null, filter: "" }; // what the reader selected; kept when a live page gets new data

// ---------------------------------------------------------------- small helpers
// Math.max(...values) fails for 100,000 values or so: they would all be arguments.
const largest = (values) => values.reduce((most, value) => Math.max(most, value), -Infinity);
const clientName = (run, number) => (run.names ??= new Map(run.clients.map((row) => [row.client, row.name]))).get(number) ?? number; // clients.csv has only tested ones
const smallest = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}
function shape(tag, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}
const drawingWidth = () => Math.min(900, Math.max(320, document.documentElement.clientWidth - 34)); // so that text has its size on a phone, too
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : (100 * value).toFixed(digits).replace(/^-(0\.?0*)$/, "$1"));
const colour = (number) => `var(--c${number % 10})`;
const dashes = ["", "7 4", "2 3", "8 3 2 3"];
const groupStyle = (name) => data.groups.find((group) => group.name === name) ?? { colour: 6, dashes: 0 };
function quantity(number, noun) { return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`; }

function csvButton(name, columns, rows) {
  const quoted = (value) => (/[",\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  const save = () => {
    const text = [columns, ...rows()].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
    const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: `${name}.csv` });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return element("button", { type: "button", class: "download", onclick: save }, `Data of ${name} (CSV)`);
}
function section(id, title, about, ...children) {
  const made = element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title));
  if (about) made.append(element("p", { class: "about" }, about));
  made.append(...children.filter((child) => child !== null));
  return made;
}
function selector(label, options, value, change) {
  const list = element("select", { onchange: () => change(list.value) });
  for (const [key, text] of options) list.append(element("option", { value: key, selected: String(key) === String(value) }, text));
  return element("label", {}, label, list);
}
function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const list = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) list.push(Number(at.toPrecision(10)));
  return list;
}
function logTicks(low, high) {
  const list = [], factors = high > 1000 * low ? [1] : high > 20 * low ? [1, 3] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) list.push(...factors.map((factor) => Number((factor * 10 ** power).toPrecision(1))));
  return list.filter((x) => x >= low * 0.999 && x <= high * 1.001);
}
const shortNumber = (value) => (Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(0) : String(Number(value.toPrecision(4))));

function tooltip(figure) {
  const box = element("div", { class: "tip", hidden: true, role: "status" });
  figure.append(box);
  return {
    show(text, x, y) { // x, y in pixels of the figure
      box.textContent = text; box.hidden = false;
      const left = Math.min(x + 14, figure.clientWidth - box.offsetWidth - 4);
      box.style.left = `${Math.max(0, left)}px`; box.style.top = `${Math.max(0, y - 10)}px`;
    },
    hide() { box.hidden = true; },
  };
}
function pointer(svg, event, width) { // position in the units of the drawing
  const frame = svg.getBoundingClientRect(), factor = width / frame.width;
  return [(event.clientX - frame.left) * factor, (event.clientY - frame.top) * factor, event.clientX - frame.left, event.clientY - frame.top];
}

// ---------------------------------------------------------------- lines with bands
function lineChart({ label, series, xLabel, yLabel, inPercent, logX }) {
  const width = drawingWidth(), height = Math.max(240, 0.4 * width), left = 58, right = 14, top = 10, bottom = 44;
  const figure = element("figure");
  const shown = series.filter((line) => !hidden.has(line.group));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": `${label}. Use the arrow keys to read values.` });
  figure.append(svg);
  const scale = inPercent ? 100 : 1;
  const xs = shown.flatMap((line) => line.x.filter((x) => !logX || x > 0));
  const ys = shown.flatMap((line) => [...line.low, ...line.high]).filter((y) => y !== null).map((y) => y * scale);
  if (!xs.length || !ys.length) { figure.append(element("p", { class: "about" }, "Nothing is switched on, or nothing was measured yet.")); return figure; }
  const convert = logX ? Math.log10 : (x) => x;
  let [x0, x1] = [smallest(xs), largest(xs)].map(convert), [y0, y1] = [smallest(ys), largest(ys)];
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  const room = (y1 - y0 || Math.abs(y1) || 1) * 0.06; y0 -= room; y1 += room;
  if (inPercent) { y0 = Math.max(y0, 0); y1 = Math.min(y1, 101); }
  const px = (x) => left + ((convert(x) - x0) / (x1 - x0)) * (width - left - right);
  const py = (y) => height - bottom - ((y * scale - y0) / (y1 - y0)) * (height - top - bottom);
  for (const y of ticks(y0, y1)) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: py(y / scale), y2: py(y / scale) }));
    svg.append(shape("text", { x: left - 8, y: py(y / scale) + 4, "text-anchor": "end" }, shortNumber(y)));
  }
  const xTicks = logX ? logTicks(10 ** x0, 10 ** x1) : ticks(x0, x1, width < 500 ? 4 : 8);
  for (const x of xTicks) svg.append(shape("text", { x: px(x), y: height - bottom + 18, "text-anchor": "middle" }, shortNumber(x)));
  svg.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  svg.append(shape("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, xLabel));
  svg.append(shape("text", { x: 14, y: (height - bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 14 ${(height - bottom) / 2})` }, yLabel));
  for (const line of shown) {
    const style = groupStyle(line.group), points = line.x.map((x, i) => [x, i]).filter(([x, i]) => line.mean[i] !== null && (!logX || x > 0));
    const band = [...points.map(([x, i]) => `${px(x)},${py(line.high[i])}`), ...points.reverse().map(([x, i]) => `${px(x)},${py(line.low[i])}`)];
    points.reverse();
    svg.append(shape("polygon", { points: band.join(" "), fill: colour(style.colour), "fill-opacity": 0.15 }));
    svg.append(shape("polyline", { points: points.map(([x, i]) => `${px(x)},${py(line.mean[i])}`).join(" "), fill: "none", stroke: colour(style.colour), "stroke-width": 2.2, "stroke-dasharray": dashes[style.dashes % 4] }));
    if (points.length === 1) svg.append(shape("circle", { cx: px(points[0][0]), cy: py(line.mean[points[0][1]]), r: 4, fill: colour(style.colour) }));
  }
  const rule = shape("line", { class: "rule", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(rule);
  const tip = tooltip(figure), stops = [...new Set(xs)].sort((a, b) => a - b);
  let at = stops.length - 1;
  const read = () => {
    const x = stops[at];
    const texts = shown.map((line) => {
      let i = line.x.indexOf(x);
      if (i < 0 && logX) i = line.x.findLastIndex((value) => value <= x); // curves of other costs: the last value so far
      if (i < 0 || line.mean[i] === null) return null;
      const spread = line.high[i] > line.low[i] ? ` (${shortNumber(line.low[i] * scale)} to ${shortNumber(line.high[i] * scale)})` : "";
      return `${line.group}: ${inPercent ? (line.mean[i] * 100).toFixed(1) + " %" : shortNumber(line.mean[i])}${spread}`;
    });
    rule.setAttribute("x1", px(x)); rule.setAttribute("x2", px(x)); rule.setAttribute("visibility", "visible");
    tip.show([`${xLabel} ${shortNumber(x)}`, ...texts.filter(Boolean)].join("\n"), (px(x) / width) * svg.clientWidth, 20);
  };
  const hide = () => { rule.setAttribute("visibility", "hidden"); tip.hide(); };
  svg.addEventListener("pointermove", (event) => {
    const [x] = pointer(svg, event, width);
    at = stops.reduce((best, stop, i) => (Math.abs(px(stop) - x) < Math.abs(px(stops[best]) - x) ? i : best), 0);
    read();
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focus", read);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -stops.length, End: stops.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    at = Math.min(Math.max(at + step, 0), stops.length - 1);
    read();
  });
  return figure;
}
function legend(redraw) {
  const list = element("ul", { class: "legend", "aria-label": "Settings; press one to hide or show it" });
  data.groups.forEach((group) => {
    const mark = shape("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" });
    mark.append(shape("line", { x1: 0, x2: 26, y1: 6, y2: 6, stroke: colour(group.colour), "stroke-width": 3, "stroke-dasharray": dashes[group.dashes % 4] }));
    const toggle = () => { hidden.has(group.name) ? hidden.delete(group.name) : hidden.add(group.name); redraw(); };
    list.append(element("li", {}, element("button", { type: "button", "aria-pressed": String(!hidden.has(group.name)), onclick: toggle }, mark, group.name)));
  });
  return list;
}
function curveSection(id, title, about, curves, options) {
  const host = element("div"), ways = Object.keys(curves);
  if (!ways.length) return null;
  const draw = (focusAt = null) => {
    const way = ways.includes(chosen.way) ? chosen.way : ways[0];
    const label = (key) => data.ways[key] ?? key;
    const rows = () => curves[way].flatMap((line) => line.x.map((x, i) => [line.group, x, line.mean[i], line.low[i], line.high[i]]));
    host.replaceChildren(
      element("div", { class: "controls" }, ways.length > 1 ? selector("Shown", ways.map((key) => [key, label(key)]), way, (key) => { chosen.way = key; draw(); }) : null,
        csvButton(id, ["setting", options.column, "mean", "lowest", "highest"], rows)),
      legend(() => draw(document.activeElement?.textContent)),
      lineChart({ label: `${title}, ${label(way)}`, series: curves[way], ...options, yLabel: options.inPercent ? (way === "miou" ? "mIoU in %" : "accuracy in %") : label(way) }));
    if (focusAt) [...host.querySelectorAll(".legend button")].find((button) => button.textContent === focusAt)?.focus();
  };
  draw();
  return section(id, title, about, host);
}

// ---------------------------------------------------------------- tables
function figureTable() {
  const names = [...new Set(data.figures.flatMap((row) => Object.keys(row.figures)))];
  if (!names.length) return null;
  const several = data.figures.length > 1;
  const text = (mean, half, sign) => (mean === null || mean === undefined ? "–" : `${sign && !percent(mean).startsWith("-") ? "+" : ""}${percent(mean)}${half === null || half === undefined ? "" : ` ± ${percent(half)}`}`);
  const table = element("table", {}, element("caption", {}, `In percent: mean over seeds ± half-width of the 95 % interval${several ? "; difference from the first setting in points, seed by seed, * if its interval excludes 0" : ""}.`));
  const head = element("tr", {}, element("th", { scope: "col", class: "text" }, "setting"), element("th", { scope: "col" }, "seeds"));
  for (const name of names) { head.append(element("th", { scope: "col" }, name)); if (several) head.append(element("th", { scope: "col" }, "difference")); }
  table.append(element("thead", {}, head));
  const body = element("tbody");
  data.figures.forEach((row, i) => {
    const line = element("tr", {}, element("th", { scope: "row", class: "text" }, row.group), element("td", {}, String(row.seeds)));
    for (const name of names) {
      const figure = row.figures[name] ?? {}, sure = figure.gap_half !== null && figure.gap_half !== undefined && Math.abs(figure.gap) > figure.gap_half;
      line.append(element("td", {}, text(figure.mean, figure.half)));
      if (several) line.append(element("td", {}, i ? text(figure.gap, figure.gap_half, true) + (sure ? " *" : "") : ""));
    }
    body.append(line);
  });
  table.append(body);
  const rows = () => data.figures.flatMap((row) => Object.entries(row.figures).map(([name, f]) => [row.group, name, f.mean, f.half, f.gap, f.gap_half]));
  return section("figures", "Figures", "", element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Figures by setting" }, table),
    element("div", { class: "controls" }, csvButton("figures", ["setting", "figure", "mean", "half", "difference", "difference half"], rows)));
}
function clientTable(run) {
  const columns = [["client", "client", "text"], ["classes", "classes", "text wrap"], ["train", "training examples"], ["test", "test examples"],
    ["accuracy_head", "by head in %"], ["low", "95 % interval"], ["accuracy_head_own", "own classes"], ["accuracy_prototype", "by prototype"], ["miou_head", "mIoU"]]
    .filter(([key]) => run.clients.some((row) => row[key] !== null && row[key] !== undefined && row[key] !== ""));
  const pageSize = 50;
  let order = ["client", 1], page = 0;
  const host = element("div"), count = element("p", { class: "about", role: "status" }), pages = element("div", { class: "controls pages" });
  const cell = (row, key) => {
    if (key === "low") return row.low === null ? "–" : `${percent(row.low)} to ${percent(row.high)}`;
    if (key.startsWith("accuracy") || key === "miou_head") return percent(row[key]);
    if (key === "client") return row.name !== undefined && row.name !== "" && String(row.name) !== String(row.client) ? `${row.name}` : String(row.client);
    return String(row[key]);
  };
  const draw = () => {
    const words = chosen.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const found = run.clients.filter((row) => words.every((word) => columns.some(([key]) => cell(row, key).toLowerCase().split(/\s+/).includes(word))));
    const [key, direction] = order;
    found.sort((a, b) => (typeof a[key] === "number" || typeof b[key] === "number" ? (a[key] ?? -1) - (b[key] ?? -1) : String(a[key]).localeCompare(String(b[key]), "en", { numeric: true })) * direction);
    page = Math.min(page, Math.max(Math.ceil(found.length / pageSize) - 1, 0));
    const head = element("tr");
    for (const [name, title, kind] of columns) {
      const active = name === key;
      const sort = () => { order = [name, active ? -direction : 1]; draw(); host.querySelectorAll("th button")[columns.findIndex(([other]) => other === name)].focus(); };
      head.append(element("th", { scope: "col", class: kind ?? "", "aria-sort": active ? (direction > 0 ? "ascending" : "descending") : "none" },
        element("button", { type: "button", onclick: sort }, `${title}${active ? (direction > 0 ? " ▲" : " ▼") : ""}`)));
    }
    const body = element("tbody");
    for (const row of found.slice(page * pageSize, (page + 1) * pageSize)) body.append(element("tr", {}, ...columns.map(([name, , kind]) => element("td", { class: kind ?? "" }, cell(row, name)))));
    host.replaceChildren(element("table", {}, element("caption", {}, "Each client on its own test set."), element("thead", {}, head), body));
    count.textContent = `${quantity(found.length, "client")} of ${run.clients.length.toLocaleString("en")}`;
    const turn = (step) => () => { page += step; draw(); };
    pages.replaceChildren(element("button", { type: "button", disabled: page === 0, onclick: turn(-1) }, "Previous"), `page ${page + 1} of ${Math.max(Math.ceil(found.length / pageSize), 1)}`,
      element("button", { type: "button", disabled: (page + 1) * pageSize >= found.length, onclick: turn(1) }, "Next"));
    pages.hidden = found.length <= pageSize;
  };
  const box = element("input", { type: "search", value: chosen.filter, oninput: () => { chosen.filter = box.value; page = 0; draw(); } });
  draw();
  const keys = Object.keys(run.clients[0]);
  return [element("div", { class: "controls" }, element("label", {}, "Filter (a client, a class)", box), csvButton("clients", keys, () => run.clients.map((row) => keys.map((key) => row[key])))),
    count, element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of clients" }, host), pages];
}

// ---------------------------------------------------------------- clients as dots, or as bars if there are many
function stripPlot(run) {
  const width = drawingWidth(), height = 170, left = 20, right = 20, bottom = 40, figure = element("figure");
  const values = run.clients.map((row) => ({ ...row, value: row.accuracy_head ?? row.accuracy_prototype })).filter((row) => row.value !== null && row.value !== undefined);
  if (!values.length) return null;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": "Accuracy of each client. Use the arrow keys to read the clients from the lowest to the highest." });
  figure.append(svg);
  const lowest = Math.floor(Math.min(smallest(values.map((row) => row.value)), 0.9) * 10) / 10, px = (value) => left + ((value - lowest) / (1 - lowest)) * (width - left - right);
  for (const x of ticks(lowest, 1)) {
    svg.append(shape("line", { class: "grid", x1: px(x), x2: px(x), y1: 8, y2: height - bottom }));
    svg.append(shape("text", { x: px(x), y: height - bottom + 18, "text-anchor": "middle" }, percent(x, 0)));
  }
  svg.append(shape("text", { x: width / 2, y: height - 6, "text-anchor": "middle" }, "accuracy in %"));
  const number = groupStyle(run.group).colour, tip = tooltip(figure);
  values.sort((a, b) => a.value - b.value);
  if (values.length > 1000) {
    const bins = Array(50).fill(0);
    for (const row of values) bins[Math.min(Math.floor(((row.value - lowest) / (1 - lowest)) * 50), 49)] += 1;
    const most = Math.max(...bins);
    bins.forEach((count, i) => svg.append(shape("rect", { x: left + (i / 50) * (width - left - right), y: height - bottom - (count / most) * 118, width: (width - left - right) / 50 - 1, height: (count / most) * 118, fill: colour(number) })));
    return figure;
  }
  const heights = new Map(), circles = values.map((row) => { // equal accuracies are stacked
    const column = Math.round(px(row.value) / 9), level = heights.get(column) ?? 0;
    heights.set(column, level + 1);
    const circle = shape("circle", { cx: px(row.value), cy: height - bottom - 8 - (level % 13) * 9, r: 4, fill: colour(number), "fill-opacity": 0.85 });
    svg.append(circle);
    return circle;
  });
  const words = (row) => `client ${row.name ?? row.client}: ${percent(row.value)} %${row.low === null ? "" : ` (95 % interval ${percent(row.low)} to ${percent(row.high)})`}\nclasses ${row.classes}\n${row.train} training, ${row.test} test examples`;
  let at = -1;
  const read = (i) => {
    circles.forEach((circle, j) => circle.setAttribute("r", i === j ? 7 : 4));
    if (i < 0) { tip.hide(); return; }
    at = i;
    tip.show(words(values[i]), (circles[i].getAttribute("cx") / width) * svg.clientWidth, (circles[i].getAttribute("cy") / width) * svg.clientWidth);
  };
  svg.addEventListener("pointermove", (event) => {
    const [x, y] = pointer(svg, event, width);
    const distances = circles.map((circle) => Math.hypot(circle.getAttribute("cx") - x, circle.getAttribute("cy") - y)), nearest = distances.indexOf(Math.min(...distances));
    read(distances[nearest] < 18 ? nearest : -1);
  });
  svg.addEventListener("pointerleave", () => read(-1));
  svg.addEventListener("blur", () => read(-1));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { event.preventDefault(); read(Math.min(Math.max(at + step, 0), values.length - 1)); }
  });
  return figure;
}

// ---------------------------------------------------------------- matrices
function matrix({ label, rows, columns, value, text, strength, sides }) {
  const size = Math.max(4, Math.min(30, Math.min(640, drawingWidth() - 90) / columns.length)), longest = Math.max(...rows.map((row) => row.length), 3), left = Math.min(14 + 7 * longest, 150), top = sides ? 8 : 62;
  const width = left + size * columns.length + 10, height = top + size * rows.length + 26, figure = element("figure");
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": `${label}. Use the arrow keys to read cells.`, style: `max-width:${Math.max(width, 260)}px` });
  figure.append(svg);
  const every = Math.ceil(14 / size);
  rows.forEach((name, i) => { if (i % every === 0) svg.append(shape("text", { x: left - 6, y: top + size * (i + 0.5) + 4, "text-anchor": "end" }, name.slice(0, 18))); });
  columns.forEach((name, j) => {
    if (j % every) return;
    const x = left + size * (j + 0.5);
    if (sides) svg.append(shape("text", { x, y: height - 8, "text-anchor": "middle" }, name));
    else svg.append(shape("text", { x, y: top - 6, transform: `rotate(-50 ${x} ${top - 6})` }, name.slice(0, 10)));
  });
  const cells = new Map();
  rows.forEach((_, i) => columns.forEach((__, j) => {
    const found = value(i, j);
    if (found === null || found === undefined) return;
    const amount = strength(found);
    const rect = shape("rect", { x: left + size * j, y: top + size * i, width: size - 1, height: size - 1, fill: `rgba(var(${amount < 0 ? "--cell-minus" : "--cell"}), ${Math.min(Math.abs(amount), 1).toFixed(3)})` });
    svg.append(rect);
    cells.set(`${i},${j}`, rect);
  }));
  svg.append(shape("rect", { x: left - 0.5, y: top - 0.5, width: size * columns.length, height: size * rows.length, fill: "none", class: "axis" }));
  const tip = tooltip(figure), frame = shape("rect", { width: size, height: size, fill: "none", class: "axis", "stroke-width": 3, visibility: "hidden" });
  svg.append(frame);
  let at = [0, 0];
  const read = ([i, j]) => {
    at = [i, j];
    frame.setAttribute("x", left + size * j - 0.5); frame.setAttribute("y", top + size * i - 0.5); frame.setAttribute("visibility", "visible");
    const factor = svg.clientWidth / width;
    tip.show(text(i, j, value(i, j)), (left + size * (j + 1)) * factor, (top + size * i) * factor);
  };
  const hide = () => { frame.setAttribute("visibility", "hidden"); tip.hide(); };
  svg.addEventListener("pointermove", (event) => {
    const [x, y] = pointer(svg, event, width), i = Math.floor((y - top) / size), j = Math.floor((x - left) / size);
    i >= 0 && j >= 0 && i < rows.length && j < columns.length ? read([i, j]) : hide();
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focus", () => read(at));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    read([Math.min(Math.max(at[0] + step[0], 0), rows.length - 1), Math.min(Math.max(at[1] + step[1], 0), columns.length - 1)]);
  });
  return figure;
}
function squareSection(id, title, part, words, strength) {
  if (!part) return null;
  const { labels, values } = part, most = Math.max(largest(values.flat().map(Math.abs)), 1e-9);
  return section(id, title, part.about,
    matrix({ label: title, rows: labels, columns: labels, value: (i, j) => values[i][j], text: (i, j, found) => words(labels[i], labels[j], found), strength: (found) => strength(found, most, values) }),
    element("div", { class: "controls" }, csvButton(id, ["class", ...labels], () => values.map((row, i) => [labels[i], ...row]))));
}
function holdingsSection(run) {
  const held = run.holdings;
  if (!held) return null;
  const about = "The number of training examples per client and class; the stronger the colour, the more.";
  if (held.sizes) {
    const curve = { group: run.group, x: held.sizes.map((_, i) => i + 1), mean: held.sizes, low: held.sizes, high: held.sizes };
    return section("holdings", "Who holds what", "The number of training examples of each client, the largest first.", lineChart({ label: "Sizes of clients", series: [curve], xLabel: "client, by size", yLabel: "training examples" }),
      element("div", { class: "controls" }, csvButton("sizes", ["rank", "training examples"], () => held.sizes.map((size, i) => [i + 1, size]))));
  }
  const clients = largest(held.counts.map(([client]) => client)) + 1, counts = new Map(held.counts.map(([client, label, count]) => [`${label},${client}`, count])), most = largest(held.counts.map((row) => row[2]));
  const name = (client) => clientName(run, client);
  return section("holdings", "Who holds what", about,
    matrix({ label: "Training examples per class and client", rows: held.labels, columns: Array.from({ length: clients }, (_, i) => String(i)), sides: true, value: (i, j) => counts.get(`${i},${j}`) ?? null,
      text: (i, j, count) => `client ${name(j)}, class ${held.labels[i]}: ${quantity(count ?? 0, "example")}`, strength: (count) => 0.15 + 0.85 * (count / most) }),
    element("div", { class: "controls" }, csvButton("holdings", ["client", "class", "training examples"], () => held.counts.map(([client, label, count]) => [name(client), held.labels[label], count]))));
}

// ---------------------------------------------------------------- the map of prototypes
function mapSection(run) {
  const map = run.map;
  if (!map) return null;
  const width = drawingWidth(), height = Math.max(320, 0.62 * width), edge = 20, figure = element("figure"), frames = map.frames;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": "Map of embeddings and prototypes. Use the arrow keys to read the prototypes." });
  figure.append(svg);
  const points = [...map.samples, ...map.local, ...frames.flatMap((frame) => frame.prototypes)];
  const [x0, x1, y0, y1] = [0, 1].flatMap((axis) => [smallest(points.map((p) => p[axis])), largest(points.map((p) => p[axis]))]);
  const unit = Math.min((width - 2 * edge) / (x1 - x0 || 1), (height - 2 * edge) / (y1 - y0 || 1));
  const px = (x) => width / 2 + (x - (x0 + x1) / 2) * unit, py = (y) => height / 2 - (y - (y0 + y1) / 2) * unit;
  const label = (number) => run.labels[number] ?? String(number), tip = tooltip(figure);
  for (const [x, y, number] of map.samples) svg.append(shape("circle", { cx: px(x), cy: py(y), r: 2.6, fill: colour(number), "fill-opacity": 0.45 }));
  for (const [x, y, number] of map.local) svg.append(shape("rect", { x: px(x) - 3, y: py(y) - 3, width: 6, height: 6, fill: colour(number), stroke: "var(--ink)", "stroke-width": 0.7 }));
  const layer = shape("g");
  svg.append(layer);
  let shown = [];
  const draw = (number) => {
    layer.replaceChildren();
    shown = frames.length ? frames[number].prototypes : [];
    for (const [x, y, klass] of shown) {
      layer.append(shape("path", { d: `M${px(x)} ${py(y) - 13}L${px(x) + 11} ${py(y) + 9}L${px(x) - 11} ${py(y) + 9}Z`, fill: colour(klass), stroke: "var(--ink)", "stroke-width": 1.6 }));
      layer.append(shape("text", { x: px(x), y: py(y) - 17, "text-anchor": "middle", "font-weight": 600 }, label(klass)));
    }
  };
  const everything = () => [...shown.map(([x, y, klass, support]) => [x, y, `prototype of class ${label(klass)}${support === null ? "" : `\nsupport: ${shortNumber(support)} examples`}`]),
    ...map.local.map(([x, y, klass, client]) => [x, y, `client ${clientName(run, client)}: its mean of class ${label(klass)}`]),
    ...map.samples.map(([x, y, klass, client]) => [x, y, `test example of client ${clientName(run, client)}, class ${label(klass)}`])];
  svg.addEventListener("pointermove", (event) => {
    const [x, y, left, top] = pointer(svg, event, width);
    let best = null, distance = 14;
    for (const [ox, oy, text] of everything()) { const far = Math.hypot(px(ox) - x, py(oy) - y); if (far < distance) { distance = far; best = text; } }
    best ? tip.show(best, left, top) : tip.hide();
  });
  svg.addEventListener("pointerleave", () => tip.hide());
  svg.addEventListener("blur", () => tip.hide());
  let at = -1;
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !shown.length) return;
    event.preventDefault();
    at = (at + step + shown.length) % shown.length;
    const [x, y, klass, support] = shown[at], factor = svg.clientWidth / width;
    tip.show(`prototype of class ${label(klass)}${support === null ? "" : `\nsupport: ${shortNumber(support)} examples`}`, px(x) * factor, py(y) * factor);
  });
  const last = frames.length - 1, position = chosen.frame === null ? last : Math.min(chosen.frame, last);
  const controls = element("div", { class: "controls" });
  if (frames.length > 1) {
    const output = element("output", {}, `round ${frames[position].round}`);
    const slider = element("input", { type: "range", min: 0, max: last, value: position, "aria-valuetext": `round ${frames[position].round}` });
    slider.addEventListener("input", () => {
      const number = Number(slider.value);
      chosen.frame = number === last ? null : number;
      output.textContent = `round ${frames[number].round}`;
      slider.setAttribute("aria-valuetext", output.textContent);
      draw(number);
    });
    controls.append(element("label", { class: "slider" }, "After", slider, output));
  }
  const rows = () => [...map.samples.map((p) => ["test example", "", p[3], label(p[2]), p[0], p[1], ""]), ...map.local.map((p) => ["class mean of a client", "", p[3], label(p[2]), p[0], p[1], ""]),
    ...frames.flatMap((frame) => frame.prototypes.map((p) => ["prototype", frame.round, "", label(p[2]), p[0], p[1], p[3]]))];
  controls.append(csvButton("map", ["kind", "round", "client", "class", "x", "y", "support"], rows));
  if (frames.length) draw(position);
  const one = frames.length === 1 ? " The run has no trace of earlier rounds; run with run.trace_every=1 to see prototypes move." : "";
  const parts = [map.samples.length ? "dots are test examples, each embedded by its client's final model" : null, map.local.length ? "squares are class means of single clients" : null, frames.length ? "triangles are the server's prototypes" : null].filter(Boolean);
  return section("map", "Prototypes and embeddings", `${parts.join("; ")}. First two principal components, with ${percent(map.explained, 0)} % of the variance; all rounds share the axes, so that movements are real.${one}`.replace(/^./, (letter) => letter.toUpperCase()), controls, figure);
}

// ---------------------------------------------------------------- the rest of a run
function attentionSection(run) {
  if (!run.attention) return null;
  const { values } = run.attention;
  return section("attention", "Attention per client", "The weight that each client (row) got per round (column), relative to equal weights: blue above, orange below.",
    matrix({ label: "Attention", rows: values.map((_, i) => String(clientName(run, i))), columns: values[0].map((_, j) => String(j + 1)), sides: true, value: (i, j) => values[i][j],
      text: (i, j, found) => `client ${clientName(run, i)}, round ${j + 1}: ${found === null ? "not sampled" : `${found.toFixed(3)} times equal weight`}`, strength: (found) => Math.max(-1, Math.min(1, (found - 1) * 3)) || 0.02 }),
    element("div", { class: "controls" }, csvButton("attention", ["client", ...values[0].map((_, j) => j + 1)], () => values.map((row, i) => [i, ...row]))));
}
function rejectedSection(run) {
  if (!run.rejected.length) return null;
  const body = element("tbody");
  for (const [round, client, reason] of run.rejected.slice(0, 200)) body.append(element("tr", {}, element("td", {}, String(round)), element("td", {}, String(client)), element("td", { class: "text" }, reason)));
  return section("rejected", "Rejected uploads", `${quantity(run.rejected.length, "upload")} did not pass the guard.`,
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Rejected uploads" }, element("table", {}, element("thead", {}, element("tr", {}, ...["round", "client", "reason"].map((name) => element("th", { scope: "col" }, name)))), body)),
    element("div", { class: "controls" }, csvButton("rejected", ["round", "client", "reason"], () => run.rejected)));
}
function commands(run) {
  const measures = ["confusion", run.similarity ? "similarity" : null].filter(Boolean).join(",");
  return [`protofed run experiment.toml --out again      # the experiment file below; the same seed gives the same figures`, `protofed compare ${data.runs.map((other) => other.quoted).slice(0, 6).join(" ")}`,
    `protofed measure ${run.quoted} --what ${measures}`, `protofed draw ${run.quoted} --what curves --out curves.pdf`].join("\n");
}
function runSections() {
  const run = data.runs[Math.min(chosen.run, data.runs.length - 1)], host = [];
  const absent = (name, title) => (run.absent[name] ? section(name, title, `Not shown: ${run.absent[name]}`) : null);
  host.push(run.clients.length ? section("clients", "Clients", "One dot per client: its accuracy by head on its own test set.", stripPlot(run), ...clientTable(run)) : null);
  host.push(holdingsSection(run) ?? absent("holdings", "Who holds what"), mapSection(run) ?? absent("map", "Prototypes and embeddings"));
  const cosine = (a, b, found) => `${a} and ${b}: ${found === null ? "not both have a prototype" : `cosine ${found.toFixed(2)}`}`, pairs = (a, b, found) => `true class ${a}, predicted ${b}: ${quantity(found, "example")}`;
  host.push(squareSection("similarity", "Similarity of prototypes", run.similarity, cosine, (found) => found) ?? absent("similarity", "Similarity of prototypes"));
  host.push(squareSection("confusion", "Confusion", run.confusion, pairs, (found, most) => (found ? 0.12 + 0.88 * (found / most) : 0)) ?? absent("confusion", "Confusion"));
  host.push(attentionSection(run));
  const entries = Object.fromEntries(Object.entries(run.entries).map(([name, pairs2]) => [name, [{ group: run.group, x: pairs2.map((p) => p[0]), mean: pairs2.map((p) => p[1]), low: pairs2.map((p) => p[1]), high: pairs2.map((p) => p[1]) }]]));
  host.push(curveSection("entries", "What the method logs", "Per round.", entries, { xLabel: "round", column: "round" }));
  host.push(rejectedSection(run));
  const versions = Object.entries(run.versions).map(([name, value]) => `${name} ${value}`).join(", ");
  host.push(section("reproduce", "Run it again", [run.cost, versions && `Made with ${versions}.`].filter(Boolean).join(" "), element("pre", { tabindex: 0, role: "region", "aria-label": "Commands" }, commands(run)),
    element("h3", {}, "The experiment file"), element("pre", { tabindex: 0, role: "region", "aria-label": "Experiment file" }, run.config)));
  return host.filter(Boolean);
}
function levelTable() {
  if (!data.levels.length) return null;
  const levels = [...new Set(data.levels.map((row) => row.accuracy))].sort(), body = element("tbody");
  for (const { name } of data.groups) {
    const found = (level) => data.levels.find((row) => row.group === name && row.accuracy === level);
    const cells = levels.map((level) => element("td", {}, found(level) ? `${found(level).rounds} (${shortNumber(Number(found(level).mb.toPrecision(3)))} MB)` : "–"));
    body.append(element("tr", {}, element("th", { scope: "row", class: "text" }, name), ...cells));
  }
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Cost until an accuracy" },
    element("table", {}, element("caption", {}, "Rounds, and megabytes, until the mean accuracy by head was first reached; of the first seed of each setting."),
      element("thead", {}, element("tr", {}, element("th", { scope: "col", class: "text" }, "setting"), ...levels.map((level) => element("th", { scope: "col" }, `${percent(level, 0)} %`)))), body));
}

// ---------------------------------------------------------------- the page
function build() {
  const seeds = Math.max(...data.groups.map((group) => group.seeds.length)), band = seeds > 1 ? " Bands reach from the lowest to the highest seed." : "", several = data.runs.length > 1;
  const perRun = element("div", { id: "per-run" });
  const drawRun = () => perRun.replaceChildren(...runSections());
  drawRun();
  const cost = curveSection("cost", "Accuracy against megabytes", "Sent so far by all clients, in both directions.", data.costs, { xLabel: "MB", column: "MB", inPercent: true, logX: true });
  if (cost) { const table = levelTable(); if (table) cost.append(table); }
  document.getElementById("sections").replaceChildren(...[
    figureTable(),
    curveSection("curves", "Learning curves", `Mean over clients after each round.${band}`, data.curves, { xLabel: "round", column: "round", inPercent: true }),
    curveSection("losses", "Terms of the loss", `Mean over the examples that were trained on.${band}`, data.losses, { xLabel: "round", column: "round" }),
    cost,
    several ? section("choose", "One run in detail", "", element("div", { class: "controls" }, selector("Run", data.runs.map((run, i) => [i, `${run.name}`]), chosen.run, (value) => { chosen.run = Number(value); chosen.frame = null; drawRun(); }))) : null,
    perRun,
  ].filter(Boolean));
}
build();
let drawnWidth = drawingWidth();
addEventListener("resize", () => { if (drawingWidth() !== drawnWidth) { drawnWidth = drawingWidth(); build(); } });

// ---------------------------------------------------------------- a run that is still going
function focusPlace() { // where the keyboard is, so that it stays there when the page is drawn again
  const active = document.activeElement, host = active?.closest("section");
  return host ? [host.id, [...host.querySelectorAll("button, select, input, [tabindex]")].indexOf(active)] : null;
}
function showProgress(ended) {
  const running = data.runs.filter((run) => run.state === "running"), box = document.getElementById("live");
  const texts = running.map((run) => {
    const left = run.seconds.length ? (run.seconds.reduce((a, b) => a + b, 0) / run.seconds.length) * (run.total - run.done) : null;
    return `${run.name}: round ${run.done} of ${run.total}${left === null ? "" : `, about ${left < 90 ? `${Math.round(left)} s` : `${Math.round(left / 60)} min`} left`}.`;
  });
  const stopped = data.runs.some((run) => !["finished", "diverged"].includes(run.state));
  const last = stopped ? "The run has stopped before its end; it can be continued with --resume." : "The run has ended.";
  box.replaceChildren(ended ? `${last} This page no longer changes.` : texts.join(" ") || "Waiting for the run.");
  if (running.length && !ended) {
    const stop = async () => {
      if (!confirm("Stop the run at its next checkpoint? It can be continued later with --resume.")) return;
      const answer = await fetch(`stop${location.search}`, { method: "POST" });
      button.replaceWith(answer.ok ? " The run stops at its next checkpoint." : " The run could not be asked to stop.");
    };
    const button = element("button", { type: "button", onclick: stop }, "Stop the run");
    box.append(" ", button);
  }
}
if (!document.getElementById("live").hidden) {
  showProgress(false);
  const events = new EventSource(`events${location.search}`);
  events.addEventListener("content", (event) => {
    const message = JSON.parse(event.data), place = focusPlace();
    data = message.content;
    document.getElementById("verdict-words").innerHTML = message.words;
    build();
    showProgress(false);
    if (place) document.getElementById(place[0])?.querySelectorAll("button, select, input, [tabindex]")[place[1]]?.focus();
  });
  events.addEventListener("end", () => { events.close(); showProgress(true); });
}
