"use strict";
// The charts of score against speed: colours and shapes by name, a knob at each point where there is room.
(() => {
  const { front } = window.algorithms;
  const { $, ALL, data, make, unique, METRICS, limits, save } = window.report;
  const { runs } = data;
  const MAX_LABELS = 80, MAX_COLOURS = 12, LETTERS = 22; // points and decoders up to which knobs are the labels, and their length
  const strict = runs.some((run) => Object.values(run.tasks).some((row) => row.score[0] !== row.score_strict[0]));
  const columns = () => Object.entries(METRICS).filter(([key]) => (key !== "score_strict" || strict) // it may say nothing new
    && runs.filter((run) => run.tasks[ALL][key][0] !== null).length * 2 >= runs.length); // of a few it says little
  const measuredOn = (run) => `${run.device}, batch size ${run.batch_size}${run.processes > 1 ? `, ${run.processes} processes at once` : ""}${run.busy ? `, ${run.busy}` : ""}`;
  const those = (rows, fit) => (rows.some(fit) ? rows.filter(fit) : rows);
  /** The methods among the runs that the page leads with, or what there is of them. */
  const methods = (rows) => those(those(rows, (row) => !row.run.is_apart), (row) => !row.run.is_ceiling);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // Where a label may be put next to its point, in pixels: nearest first.
  const PLACES = [[8, -5, "left"], [8, 11, "left"], [-8, -5, "right"], [-8, 11, "right"], [0, -10, "center"], [0, 18, "center"],
    [12, -16, "left"], [-12, -16, "right"], [12, 22, "left"], [-12, 22, "right"]];
  /** Labels that neither touch each other nor a point; those without room are left out. */
  function labels(points, width, height) {
    const taken = points.map(({ px, py }) => [px - 5, py - 5, px + 5, py + 5]), placed = [];
    for (const point of points) {
      const text = point.label.length > LETTERS ? `${point.label.slice(0, LETTERS)}\u2026` : point.label, wide = 6 * text.length;
      for (const [dx, dy, align] of text ? PLACES : []) {
        const left = point.px + dx - (align === "right" ? wide : align === "center" ? wide / 2 : 0), top = point.py + dy - 9;
        const box = [left, top, left + wide, top + 11];
        const inside = box[0] > 0 && box[1] > -8 && box[2] < width && box[3] < height;
        if (!inside || taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
        taken.push(box);
        placed.push({ ...point, text, dx, dy, align });
        break;
      }
    }
    return placed;
  }

  const views = new Map(); // chart id to its view
  async function draw(id, rows, speed, title) {
    const key = ["decoder", "cache", "model"].find((k) => unique(rows.map((row) => row.run[k])).length > 1) ?? "decoder";
    const onFront = front(methods(rows).filter((row) => row[speed][0] !== null), speed), caches = unique(rows.map((row) => row.run.cache));
    const byCache = key === "decoder" && caches.length > 1;
    const named = (run) => run[key] + (run.is_ceiling ? " (ceiling)" : "");
    const values = rows.filter((row) => row[speed][0] > 0).map((row) => ({
      run: row.run.name, curve: row.run.curve, cache: row.run.cache, front: onFront.has(row), ceiling: row.run.is_ceiling,
      series: named(row.run), label: row.run.label, hue: row.run.looks[key][0],
      tpf: row.tpf[0], x: row[speed][0], x1: row[speed][1] || row[speed][0], x2: row[speed][2],
      y: 100 * row.score[0], y1: 100 * row.score[1], y2: 100 * row.score[2],
      ...Object.fromEntries(Object.entries(METRICS).map(([name, { head, show, interval }]) =>
        [head, show(row[name][0]) + (interval ? limits(row[name], show) : "")])),
      "measured on": measuredOn(row.run),
    }));
    const seen = new Map(rows.map(({ run }) => [named(run), run])), shapeOf = new Map(rows.map(({ run }) => [run.cache, run.looks.cache[1]]));
    const domain = [...seen.keys()], range = domain.map((name) => seen.get(name).looks[key][0]);
    const shape = byCache ? { field: "cache", type: "nominal", title: "cache", legend: { columns: 1 }, scale: { domain: caches, range: caches.map((name) => shapeOf.get(name)) } }
      : { field: "series", type: "nominal", title: key, scale: { domain, range: domain.map((name) => seen.get(name).looks[key][1]) } };
    const x = { field: "x", type: "quantitative", title, scale: { type: "log", base: speed === "tpf" ? 2 : 10, nice: false, padding: 12 }, axis: { format: speed === "tpf" ? "~g" : "~s", tickCount: 6 } };
    const y = { field: "y", type: "quantitative", title: "score, %", scale: { zero: false, nice: true } };
    const hue = { field: "series", type: "nominal", title: key, scale: { domain, range } };
    const tooltip = ["run", ...columns().map(([, { head }]) => head), "measured on"].map((field) => ({ field, type: "nominal" }));
    const pixels = { type: "quantitative", scale: null, axis: null, title: null };
    const ink = colour("--text"), isFront = [{ filter: "datum.front" }];
    const points = (ceiling) => ({ transform: [{ filter: `datum.ceiling === ${ceiling}` }],
      mark: { type: "point", size: 70, opacity: 1, filled: !ceiling, strokeWidth: 2 }, encoding: { color: hue, tooltip, shape } });
    const spec = {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json",
      description: `${title} and score of ${values.length} runs; the table of runs has the same numbers`,
      width: "container", height: 340, background: null, data: { values },
      encoding: { x, y },
      layer: [
        { mark: { type: "line", strokeWidth: 1, opacity: 0.45, tooltip: false }, encoding: { color: hue, detail: { field: "curve" }, order: { field: "tpf" } } },
        { mark: { type: "rule", opacity: 0.35 }, encoding: { color: hue, x: { ...x, field: "x1" }, x2: { field: "x2" } } },
        { mark: { type: "rule", opacity: 0.35 }, encoding: { color: hue, y: { ...y, field: "y1" }, y2: { field: "y2" } } },
        { transform: isFront, mark: { type: "line", interpolate: "step-before", strokeWidth: 1.5, color: ink, tooltip: false }, encoding: { order: { field: "x" } } },
        { transform: isFront, mark: { type: "point", size: 170, color: ink, strokeWidth: 1.5, aria: false } },
        ...unique(values.map(({ ceiling }) => ceiling)).map(points),
        { data: { name: "labels", values: [] }, mark: { type: "text", fontSize: 11, baseline: "alphabetic", aria: false, tooltip: false, color: ink,
          dx: { expr: "datum.dx" }, dy: { expr: "datum.dy" }, align: { expr: "datum.align" } }, encoding: { x: { field: "px", ...pixels }, y: { field: "py", ...pixels }, text: { field: "text" } } },
      ],
      config: {
        font: "system-ui, sans-serif", axis: { labelColor: ink, titleColor: ink, gridColor: colour("--line"), domainColor: colour("--muted"), tickColor: colour("--muted"), labelFontSize: 12, titleFontSize: 12, titleFontWeight: 600 },
        legend: { orient: "bottom", columns: Math.max(1, Math.floor($(id).clientWidth / 150)), labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, labelLimit: 240, symbolOpacity: 1, symbolBaseFillColor: ink, symbolBaseStrokeColor: ink, symbolLimit: 0 }, view: { stroke: null },
      },
    };
    views.get(id)?.finalize();
    const { view } = await vegaEmbed($(id), spec, { actions: false, renderer: "svg", ast: true });
    views.set(id, view);
    // knobs where there are few points; else the names of those on the front and of each decoder's best
    const few = values.length <= MAX_LABELS && domain.length <= MAX_COLOURS, best = new Map();
    for (const value of values) if (value.y > (best.get(value.series)?.y ?? -1)) best.set(value.series, value);
    const label = (value) => (few ? value.label : value.front ? `${value.series} ${value.label}`.trim() : best.get(value.series) === value ? value.series : "");
    $("labelled").hidden = !few;
    const [across, down] = [view.scale("x"), view.scale("y")];
    const at = values.map((value) => ({ label: label(value), front: value.front, px: across(value.x), py: down(value.y) }));
    at.sort((a, b) => b.front - a.front); // the front finds room first
    await view.data("labels", labels(at, view.width(), view.height())).runAsync();
  }

  for (const button of document.querySelectorAll("[data-svg]")) {
    const id = button.dataset.svg;
    button.addEventListener("click", async () => save(`${id}.svg`, "image/svg+xml", await views.get(id).toSVG()));
  }

  Object.assign(window.report, { draw, columns, measuredOn, methods, those });
})();
