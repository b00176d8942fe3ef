// Draws the charts with plotly, makes the tables sortable with DataTables, and shows buffers' lives.
// Names come from dumps that nobody vouches for: they are only ever set as text.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const calm = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
let chosen = null; // the buffer whose life is shown
let kept = null; // the step that a click keeps

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
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

function draw(id, figure) {
  const place = document.getElementById(id);
  if (place && figure) Plotly.react(place, figure.data, themed(figure.layout), calm);
  return place;
}

function row(list, name, value) {
  if (value === null || value === "" || value.length === 0) return;
  const term = document.createElement("dt");
  const text = document.createElement("dd");
  term.textContent = name;
  text.textContent = Array.isArray(value) ? value.join("\n") : value;
  list.append(term, text);
}

function showLife(buffer) {
  chosen = buffer;
  const panel = document.getElementById("life");
  panel.hidden = false;
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
  drawLife();
}

function drawLife() {
  if (!chosen || chosen.first === null || !data.charts.curve) return;
  const shapes = data.charts.curve.layout.shapes ?? [];
  const life = {
    type: "rect", xref: "x", yref: "paper", x0: chosen.first, x1: chosen.last, y0: 0, y1: 1,
    fillcolor: "#E69F00", opacity: 0.25, line: { width: 0 },
  };
  Plotly.relayout("curve", { shapes: [...shapes, life] });
}

function showAlive(step) {
  const alive = data.temporaries.filter((b) => b.first <= step && step <= b.last).slice(0, 12);
  const panel = document.getElementById("alive");
  if (!panel) return;
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
  const curve = draw("curve", data.charts.curve);
  if (!curve || !data.charts.curve) return;
  curve.removeAllListeners?.("plotly_hover");
  curve.removeAllListeners?.("plotly_click");
  curve.on("plotly_hover", (event) => kept === null && showAlive(event.points[0].x));
  curve.on("plotly_click", (event) => {
    kept = kept === null ? event.points[0].x : null;
    showAlive(event.points[0].x);
  });
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
  treemap.removeAllListeners?.("plotly_treemapclick");
  treemap.on("plotly_treemapclick", (event) => {
    const index = event.points[0].customdata?.[0] ?? -1;
    if (index >= 0) showLife(data.buffers[index]);
    return index < 0; // a tile's life is shown, a box is entered
  });
}

function drawCharts() {
  drawCurve();
  draw("roofline", data.charts.roofline);
  draw("bytes", data.charts.bytes);
  if (kept === null && Number.isInteger(data.peak)) showAlive(data.peak);
  drawChosen("choices", data.charts.treemaps, drawTreemap);
  drawChosen("lane-choices", data.charts.lanes, (name) => draw("lanes", data.charts.lanes[name]));
  drawLife();
  drawNeighbours();
}

async function makeTables() {
  if (!document.querySelector("table.data")) return;
  const address = URL.createObjectURL(new Blob([await unpacked("datatables")], { type: "text/javascript" }));
  const { jQuery } = await import(address);
  URL.revokeObjectURL(address);
  for (const table of document.querySelectorAll("table.data")) {
    const long = table.tBodies[0].rows.length > 25; // a short one needs no pages and no filter
    jQuery(table).DataTable({
      paging: long,
      searching: long,
      info: long,
      order: table.dataset.orderedBy ? [[Number(table.dataset.orderedBy), "desc"]] : [],
      pageLength: 25,
      lengthMenu: [25, 100, { label: "all", value: -1 }],
      autoWidth: false,
      language: { search: "filter:" },
    });
    if (table.dataset.buffers) listen(table);
  }
}

function listen(table) {
  const open = (event) => {
    const line = event.target.closest("tr[data-index]");
    if (line) showLife(data[table.dataset.buffers][Number(line.dataset.index)]);
  };
  table.addEventListener("click", open);
  table.addEventListener("keydown", (event) => event.key === "Enter" && open(event));
}

// A chart that is folded away has no size yet: it is drawn when it is opened.
function drawNeighbours() {
  for (const details of document.querySelectorAll("details.neighbours[open]"))
    draw(`graph-${details.dataset.graph}`, data.charts.graphs[Number(details.dataset.graph)]);
}

function setTheme(theme) {
  root.dataset.theme = theme;
  root.classList.toggle("dark", theme === "dark");
}

async function start() {
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("theme")?.addEventListener("click", () => {
    setTheme(isDark() ? "light" : "dark");
    drawCharts();
  });
  if (document.getElementById("plotly").textContent) {
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly");
    document.head.append(script);
    drawCharts();
    for (const details of document.querySelectorAll("details.neighbours"))
      details.addEventListener("toggle", drawNeighbours);
  }
  await makeTables();
  root.dataset.ready = "yes";
}

start();
