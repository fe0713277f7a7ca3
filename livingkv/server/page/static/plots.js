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
  const wanted = [
    { id: "plot-bytes", columns: [0, 1, 2, 3], names: ["Device", "RAM", "Disk"], show: size, from: "samples" },
    { id: "plot-hits", columns: [0, 4, 5], names: ["Hits", "Misses"], show: count, from: "samples" },
    { id: "plot-restores", columns: [0, 1], names: ["Restore"], show: ms, from: "restores", dots: true },
  ];
  let plots = [], last = null;

  function draw(data) {
    for (const plot of plots) plot.destroy();
    const [text, grid] = [style("--soft"), style("--line")];
    const colours = [style("--plot-1"), style("--plot-2"), style("--plot-3")];
    plots = wanted.map((each) => {
      const target = document.getElementById(each.id);
      const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
      return new uPlot({
        width: target.clientWidth, height: 190,
        axes: [axis, { ...axis, size: 74, values: (_, ticks) => ticks.map(each.show) }],
        scales: { y: { range: (_, lo, hi) => [0, hi > 0 ? hi * 1.1 : 1] } },
        series: [{}, ...each.names.map((label, n) => ({
          label, stroke: colours[n], width: each.dots ? 0 : 2, value: (_, value) => each.show(value),
          points: { show: each.dots || data[each.from][0].length < 3, size: 7, fill: colours[n] },
        }))],
      }, each.columns.map((n) => data[each.from][n]), target);
    });
  }

  async function refresh() {
    const note = document.getElementById("plot-note");
    try {
      const response = await fetch(box.dataset.series);
      if (!response.ok) throw new Error(String(response.status));
      const data = await response.json();
      const isFirst = last === null;
      last = data;
      note.textContent = data.restores[0].length ? "" : "No session was restored from this page yet.";
      if (isFirst) draw(data);
      else plots.forEach((plot, n) => plot.setData(wanted[n].columns.map((c) => data[wanted[n].from][c])));
    } catch {
      note.textContent = "The service does not answer.";
    }
  }

  addEventListener("resize", () => {
    plots.forEach((plot, n) => plot.setSize({ width: document.getElementById(wanted[n].id).clientWidth, height: 190 }));
  });
  document.addEventListener("themed", () => last && draw(last));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && draw(last));
  refresh();
  setInterval(refresh, 2000);
})();
