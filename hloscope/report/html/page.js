// Draws the charts with plotly, makes the tables sortable with DataTables, and shows buffers' lives.
// Names come from dumps that nobody vouches for: they are only ever set as text.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
// Newer versions of plotly offer to upload a chart; a dump is nobody's business.
const calm = {
  displaylogo: false,
  responsive: true,
  showSendToCloud: false,
  plotlyServerURL: "",
  modeBarButtonsToRemove: ["select2d", "lasso2d"],
};
let chosen = null; // the buffer whose life is shown
let kept = null; // the step that a click keeps

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function unpacked(id) {
  const packed = bytesOf(document.getElementById(id).textContent);
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function isDark() {
  return root.dataset.theme === "dark";
}

function themed(layout) {
  const ink = isDark() ? "#e6e6e6" : "#1c1c1c";
  const grid = isDark() ? "#3a3f47" : "#dddddd";
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid };
  return {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { ...layout.font, color: ink },
    xaxis: { ...layout.xaxis, ...axis },
    yaxis: { ...layout.yaxis, ...axis },
  };
}

// Draws a figure into its place, with what it leaves out as a line below; null if there is no such place.
function draw(id, figure) {
  const place = document.getElementById(id);
  if (!place || !figure) return null;
  Plotly.react(place, figure.data, themed(figure.layout), calm);
  const note = document.getElementById(`${id}-note`);
  if (note) note.textContent = figure.layout.meta?.note ?? "";
  return place;
}

// What is far from the window is drawn when it comes near: a page of many charts is of use before all are drawn.
const waiting = new Map(); // an element, and what draws it
const drawn = new Set(); // what to draw anew in other colours
const near = new IntersectionObserver(
  (entries) => entries.forEach((entry) => entry.isIntersecting && drawNow(entry.target)),
  { rootMargin: "400px" },
);

function drawNow(element) {
  const drawOne = waiting.get(element);
  if (!drawOne) return;
  waiting.delete(element);
  near.unobserve(element);
  drawn.add(drawOne);
  drawOne();
}

function drawWhenNear(id, drawOne) {
  const element = document.getElementById(id);
  if (!element) return;
  waiting.set(element, drawOne);
  near.observe(element);
}

function row(list, name, value) {
  if (value === null || value === "" || value.length === 0) return;
  const term = document.createElement("dt");
  const text = document.createElement("dd");
  term.textContent = name;
  text.textContent = Array.isArray(value) ? value.join("\n") : value;
  list.append(term, text);
}

// `from` is the row of a table far below that it was chosen in; a button leads back there.
function showLife(buffer, from = null) {
  chosen = buffer;
  const panel = document.getElementById("life");
  panel.hidden = false;
  const back = panel.querySelector("button");
  back.hidden = from === null;
  back.onclick = () => { from.scrollIntoView({ block: "center" }); from.focus({ preventScroll: true }); };
  panel.querySelector("h3").textContent = `${buffer.label} ${buffer.shape ?? ""}`;
  const list = panel.querySelector("dl");
  list.replaceChildren();
  row(list, "bytes", buffer.size);
  row(list, "without padding", buffer.unpadded);
  row(list, "layout", buffer.layout);
  row(list, "kind", buffer.kind);
  row(list, "phase", buffer.phase);
  row(list, "lives from step", buffer.first === null ? "unknown" : `${buffer.first} to ${buffer.last}`);
  row(list, "made by", buffer.instruction && `${buffer.opcode} ${buffer.instruction}`);
  row(list, "operation", buffer.op_name);
  row(list, "source", buffer.source);
  row(list, "used by", buffer.users);
  drawMarks();
  if (from === null) return;
  hold(panel);
  back.focus({ preventScroll: true });
}

// Keep a place in the window while charts and tables above it still take their room, unless the reader moves on.
let held = null;
function hold(place) {
  held = place;
  const since = performance.now();
  const again = () => {
    if (held !== place) return;
    if (Math.abs(place.getBoundingClientRect().top - parseFloat(getComputedStyle(place).scrollMarginTop)) > 2)
      place.scrollIntoView();
    if (root.dataset.ready !== "yes" || performance.now() < since + 1000) requestAnimationFrame(again);
  };
  again();
}
for (const moved of ["wheel", "touchmove", "pointerdown", "keydown"])
  addEventListener(moved, () => (held = null), { passive: true, capture: true });

// What is chosen, for the curve: the life of a buffer, the step that is kept.
function marks() {
  const across = { xref: "x", yref: "paper", y0: 0, y1: 1 };
  const shapes = [...(data.charts.curve.layout.shapes ?? [])];
  if (chosen && chosen.first !== null)
    shapes.push({
      ...across, type: "rect", x0: chosen.first, x1: chosen.last,
      fillcolor: "#E69F00", opacity: 0.25, line: { width: 0 },
    });
  if (kept !== null)
    shapes.push({ ...across, type: "line", x0: kept, x1: kept, line: { width: 1, color: "#999999" } });
  return shapes;
}

function drawMarks() {
  if (data.charts.curve) Plotly.relayout("curve", { shapes: marks() });
}

function keep(step) {
  kept = step;
  if (step !== null) showAlive(step);
  drawMarks();
}

function showAlive(step) {
  const panel = document.getElementById("alive");
  if (!panel) return;
  document.getElementById("step").value = step;
  const alive = data.temporaries.filter((b) => b.first <= step && step <= b.last).slice(0, 12);
  panel.querySelector("h3").textContent = `Largest temporaries alive at step ${step.toLocaleString("en")}`;
  const items = alive.map((buffer) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `${buffer.size}  ${buffer.label} ${buffer.shape ?? ""}`;
    button.addEventListener("click", () => showLife(buffer));
    item.append(button);
    return item;
  });
  panel.querySelector("ol").replaceChildren(...items);
}

function drawCurve() {
  const figure = data.charts.curve;
  const curve = draw("curve", figure && { ...figure, layout: { ...figure.layout, shapes: marks() } });
  if (!curve) return;
  if (kept === null && Number.isInteger(data.peak)) showAlive(data.peak);
  curve.removeAllListeners("plotly_hover");
  curve.removeAllListeners("plotly_click");
  curve.on("plotly_hover", (event) => kept === null && showAlive(event.points[0].x));
  curve.on("plotly_click", (event) => keep(kept === null ? event.points[0].x : null));
}

// Buttons that choose one of several charts; the one that is shown is pressed.
function drawChosen(place, charts, drawOne) {
  const group = document.getElementById(place);
  const names = Object.keys(charts ?? {});
  if (!group || !names.length) return;
  const show = (name) => {
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.name === name));
    drawOne(name);
  };
  if (!group.children.length)
    for (const name of names) {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.name = name;
      button.textContent = name;
      button.addEventListener("click", () => show(name));
      group.append(button);
    }
  show(group.querySelector('[aria-pressed="true"]')?.dataset.name ?? names[0]);
}

function drawTreemap(name) {
  const treemap = draw("treemap", data.charts.treemaps[name]);
  if (!treemap) return;
  treemap.removeAllListeners("plotly_treemapclick");
  treemap.on("plotly_treemapclick", (event) => {
    const index = event.points[0].customdata?.[0] ?? -1;
    if (index >= 0) showLife(data.buffers[index]);
    return index < 0; // a tile's life is shown, a box is entered
  });
}

// The first chart at once, the others as they are scrolled to.
function drawCharts() {
  drawn.add(drawCurve);
  drawCurve();
  const step = document.getElementById("step"); // what hovering does, from the keyboard
  step?.addEventListener("input", () => keep(Number(step.value)));
  drawWhenNear("bytes", () => draw("bytes", data.charts.bytes));
  drawWhenNear("treemap", () => drawChosen("choices", data.charts.treemaps, drawTreemap));
  drawWhenNear("lanes", () =>
    drawChosen("lane-choices", data.charts.lanes, (name) => draw("lanes", data.charts.lanes[name])),
  );
  drawWhenNear("roofline", () => draw("roofline", data.charts.roofline));
  // One that is folded away has no place in the window until it is opened.
  for (const number of Object.keys(data.charts.graphs ?? {}))
    drawWhenNear(`graph-${number}`, () => draw(`graph-${number}`, data.charts.graphs[number]));
  addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawNow));
}

function idle() {
  return new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done));
}

async function makeTables() {
  const tables = document.querySelectorAll("table.data");
  if (!tables.length) return;
  for (const table of tables) if (table.dataset.buffers) listen(table);
  await idle();
  const address = URL.createObjectURL(new Blob([await unpacked("datatables")], { type: "text/javascript" }));
  const { jQuery } = await import(address);
  URL.revokeObjectURL(address);
  for (const table of tables) {
    await idle(); // one at a time: between them the page answers
    makeTable(jQuery(table), table);
  }
}

function makeTable(wrapped, table) {
  const long = table.tBodies[0].rows.length > 25; // a short one needs no pages and no filter
  wrapped.DataTable({
    paging: long,
    searching: long,
    info: long,
    order: table.dataset.orderedBy ? [[Number(table.dataset.orderedBy), "desc"]] : [],
    pageLength: 25,
    lengthMenu: [25, 100, { label: "all", value: -1 }],
    autoWidth: false,
    language: { search: "filter:" },
  });
}

function listen(table) {
  const open = (event) => {
    const line = event.target.closest("tr[data-index]");
    if (line) showLife(data[table.dataset.buffers][Number(line.dataset.index)], line);
  };
  table.addEventListener("click", open);
  table.addEventListener("keydown", (event) => event.key === "Enter" && open(event));
}

function setTheme(theme) {
  root.dataset.theme = theme;
  root.classList.toggle("dark", theme === "dark");
}

async function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  for (const link of document.querySelectorAll('nav a[href^="#"]'))
    link.addEventListener("click", () => hold(document.getElementById(link.hash.slice(1))));
  document.getElementById("theme")?.addEventListener("click", () => {
    setTheme(isDark() ? "light" : "dark");
    drawn.forEach((drawOne) => drawOne());
  });
  if (document.getElementById("plotly").textContent) {
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly");
    document.head.append(script);
    drawCharts();
  }
  performance.mark("usable"); // what answers first can be read, and asked
  await makeTables();
  root.dataset.ready = "yes";
}

start();
