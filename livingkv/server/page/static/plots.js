// The plots of the status page: uPlot over /page/series, drawn in the page's own colours.
"use strict";
(() => {
  const box = document.getElementById("plots");
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const steps = ["B", "KiB", "MiB", "GiB", "TiB"];
  const size = (n) => {
    if (n == null) return "–";
    let step = 0;
    while (n >= 1024 && step < steps.length - 1) { n /= 1024; step += 1; }
    return `${n.toFixed(step && n < 100 ? 1 : 0)} ${steps[step]}`;
  };
  const count = (n) => (n == null ? "–" : n.toLocaleString("en"));
  const ms = (n) => (n == null ? "–" : `${n.toFixed(1)} ms`);
  const clock = (seconds) => (seconds == null ? "–" : new Date(seconds * 1000).toLocaleTimeString("en-GB"));
  const wanted = [
    { id: "plot-bytes", columns: [0, 1, 2, 3], names: ["Device", "RAM", "Disk"], show: size, from: "samples" },
    { id: "plot-hits", columns: [0, 4, 5], names: ["Hits", "Misses"], show: count, from: "samples" },
    { id: "plot-restores", columns: [0, 1], names: ["Restore"], show: ms, from: "restores", dots: true },
  ];
  const plots = new Map();
  let last = null;

  function made(each, columns, target) {
    const grid = { stroke: style("--line"), width: 1 };
    const axis = { stroke: style("--soft"), grid, ticks: grid };
    return new uPlot({
      width: target.clientWidth, height: 190,
      axes: [
        { ...axis, space: 70, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 70, values: (_, ticks) => ticks.map(each.show) },
      ],
      scales: {
        x: { range: (_, lo, hi) => (hi - lo < 20 ? [(lo + hi) / 2 - 10, (lo + hi) / 2 + 10] : [lo, hi]) },
        y: { range: (_, lo, hi) => [0, hi > 0 ? hi * 1.1 : 1] },
      },
      series: [{ label: "Time", value: (_, value) => clock(value) }, ...each.names.map((label, n) => ({
        label, stroke: style(`--plot-${n + 1}`), width: each.dots ? 0 : 2, value: (_, value) => each.show(value),
        points: { show: each.dots || undefined, size: 7, fill: style(`--plot-${n + 1}`) },
      }))],
    }, columns, target);
  }

  function show(data) {
    last = data;
    document.getElementById("no-restores").hidden = data.restores[0].length > 0;
    for (const each of wanted) {
      const columns = each.columns.map((n) => data[each.from][n]);
      if (!columns[0].length) continue;
      if (plots.has(each.id)) plots.get(each.id).setData(columns);
      else plots.set(each.id, made(each, columns, document.getElementById(each.id)));
    }
  }

  function again() {
    plots.forEach((plot) => plot.destroy());
    plots.clear();
    if (last) show(last);
  }

  async function refresh() {
    const note = document.getElementById("plot-note");
    try {
      const response = await fetch(box.dataset.series);
      if (!response.ok) throw new Error(String(response.status));
      show(await response.json());
      note.textContent = "";
    } catch {
      note.textContent = "The service does not answer.";
    }
  }

  addEventListener("resize", () => {
    plots.forEach((plot, id) => plot.setSize({ width: document.getElementById(id).clientWidth, height: 190 }));
  });
  document.addEventListener("themed", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  refresh();
  setInterval(refresh, 2000);
})();
