"use strict";

const charts = JSON.parse(document.getElementById("charts").textContent);
const darkness = matchMedia("(prefers-color-scheme: dark)");
const views = new Map();

// The variables of the page's style, under the names that charts have for them.
function painted(spec) {
  const style = getComputedStyle(document.documentElement);
  const named = (value) =>
    typeof value === "string" && value.startsWith("@")
      ? style.getPropertyValue("--" + value.slice(1)).trim()
      : value;
  return JSON.parse(JSON.stringify(spec), (_, value) => named(value));
}

const appearance = {
  background: "transparent",
  font: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif",
  view: { stroke: null },
  // The element has a label and the page has tables; a label a mark would be thousands.
  mark: { aria: false },
  axis: {
    aria: false,
    domainColor: "@edge",
    gridColor: "@grid",
    tickColor: "@edge",
    labelColor: "@muted",
    titleColor: "@muted",
    labelFontSize: 12,
    titleFontSize: 12,
    titleFontWeight: "normal",
    labelOverlap: true,
  },
  axisX: { tickCount: { expr: "ceil(width / 90)" } },
  // Times below each other stand at the same place, however long the labels beside them are.
  axisY: { labelLimit: 130, minExtent: 44 },
  legend: { aria: false, labelColor: "@text", titleColor: "@muted", labelFontSize: 12, titleFontWeight: "normal" },
  title: { aria: false, color: "@text", fontSize: 13, fontWeight: 500 },
};

function rowsOf(columns) {
  const names = Object.keys(columns);
  const count = names.length ? columns[names[0]].length : 0;
  return Array.from({ length: count }, (_, row) =>
    Object.fromEntries(names.map((name) => [name, columns[name][row]])));
}

function datasetsOf(choice) {
  return Object.fromEntries(
    Object.entries(choice.data).map(([name, columns]) => [name, rowsOf(columns)]));
}

async function draw(name) {
  const chart = charts[name];
  const select = document.getElementById(name + "-choice");
  const choice = chart.choices[select ? Number(select.value) : 0];
  const spec = {
    ...painted(chart.spec),
    description: choice.title ? chart.label + " " + choice.title : chart.label,
    datasets: datasetsOf(choice),
  };
  const options = { actions: false, renderer: "svg", config: painted(appearance), theme: null };
  const { view, finalize } = await vegaEmbed(document.getElementById(name), spec, {
    ...options, tooltip: { theme: darkness.matches ? "dark" : "light" },
  });
  views.get(name)?.();
  views.set(name, finalize);
  return view.runAsync();
}

async function drawAll() {
  for (const name of Object.keys(charts)) {
    await draw(name);
    await new Promise((resolve) => setTimeout(resolve)); // what is drawn is shown
  }
  document.documentElement.dataset.state = "drawn";
}

for (const select of document.querySelectorAll("select[data-chart]")) {
  select.addEventListener("change", () => draw(select.dataset.chart));
}
darkness.addEventListener("change", drawAll);
drawAll();
