"use strict";
// The report's page: filters, charts, tables and paired comparisons over the JSON beside it. All of it is shown as text.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const $ = (id) => document.getElementById(id);
  const { front, bounded, product, signFlipP } = window.algorithms;
  const data = read("data");
  const { runs, sets } = data;
  const ALL = "all", INK = "#1b2430", GREY = "#8a94a0";
  const SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"];
  const COLOURS = ["#0b5a7d", "#c2571a", "#4f7d2c", "#8b3a86", "#a8842c", "#2f8f83", "#b03a48", "#5b5fc7"];

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const unique = (values) => [...new Set(values)];
  const capital = (text) => text[0].toUpperCase() + text.slice(1);
  const fixed = (digits, scale = 1, unit = "") => (value) => (value === null ? "\u2013" : (scale * value).toFixed(digits) + unit);
  const percent = fixed(1, 100);

  // Metrics as stats.metrics has them: heading, format, whether with the interval, title
  const METRICS = Object.fromEntries(data.metrics.map(([name, head, about, digits, scale, unit, interval]) =>
    [name, { head, show: fixed(digits, scale, unit), interval, title: capital(about) }]));
  const shown = (row, name) => METRICS[name].show(row[name][0]);
  const strict = runs.some((run) => Object.values(run.tasks).some((row) => row.score[0] !== row.score_strict[0]));
  const columns = () => Object.entries(METRICS).filter(([key]) => key !== "score_strict" || strict); // it may say nothing new
  const limits = ([, low, high], show) => (low === high ? "" : ` [${show(low)}, ${show(high)}]`); // equal: there are none
  const withInterval = (row, show) => make("span", {}, show(row[0]), make("span", { class: "interval" }, limits(row, show)));
  const breakable = (name) => make("span", {}, ...name.split(/(?<=[/_])/).flatMap((part) => [part, make("wbr")]));

  // ---- Tables: columns are {head, title, value(row), cell(row), text}; the first one names its row

  const order = new Map(); // table id to [column, direction]
  function fill(id, columns, rows, className = () => "") {
    const table = $(id);
    const [by, direction] = order.get(id) ?? [null, 1];
    const shown = by === null ? rows : [...rows].sort((a, b) => direction * compareValues(columns[by].value(a), columns[by].value(b)));
    const heads = columns.map((column, i) => {
      const button = make("button", { type: "button", title: column.title ?? `Sort by ${column.head}` }, column.head);
      const head = make("th", { scope: "col" }, column.value ? button : column.head);
      if (i === by) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      button.addEventListener("click", () => {
        order.set(id, [i, i === by ? -direction : rows.length && typeof column.value(rows[0]) === "number" ? -1 : 1]);
        fill(id, columns, rows, className);
        table.tHead.rows[0].cells[i].firstChild.focus();
      });
      return head;
    });
    const body = shown.map((row) => make("tr", { class: className(row) }, ...columns.map((column, i) =>
      make(i ? "td" : "th", i ? { class: column.text ? "text" : "" } : { scope: "row" }, column.cell(row)))));
    table.replaceChildren(make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
  }
  const compareValues = (a, b) => (typeof a === "number" ? (a ?? -1) - (b ?? -1) : String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true }));

  // ---- Filters

  const chosen = { model: new Set(), decoder: new Set(), cache: new Set() };
  for (const task of [ALL, ...data.tasks]) $("task").append(make("option", { value: task }, task === ALL ? "all tasks" : task));
  for (const key of Object.keys(chosen)) {
    const values = unique(runs.map((run) => run[key]));
    const chips = values.map((value) => {
      const box = make("input", { type: "checkbox", name: key, value });
      box.addEventListener("change", () => { chosen[key][box.checked ? "add" : "delete"](value); update(); });
      return make("label", {}, box, value);
    });
    if (values.length > 1) $("choices").append(make("fieldset", {}, make("legend", {}, capital(key)), make("div", { class: "chips" }, ...chips)));
  }
  $("task").addEventListener("change", () => update());
  $("loss").addEventListener("input", () => update());
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("filters").addEventListener("reset", () => {
    for (const set of Object.values(chosen)) set.clear();
    setTimeout(update); // once the form is reset
  });

  function visible() {
    const task = $("task").value;
    const fits = (run) => Object.entries(chosen).every(([key, set]) => !set.size || set.has(run[key]));
    return runs.filter((run) => fits(run) && run.tasks[task]).map((run) => ({ run, ...run.tasks[task] }));
  }

  // ---- Charts

  function series(rows) {
    const key = ["decoder", "cache", "model"].find((k) => unique(rows.map((row) => row.run[k])).length > 1) ?? "decoder";
    const every = unique(runs.map((run) => run[key])), here = unique(rows.map((row) => row.run[key]));
    const fronted = [...front(rows, "tpf"), ...front(rows, "tokens_per_s")].map((row) => row.run[key]);
    const names = every.length <= COLOURS.length ? every
      : here.length <= COLOURS.length ? here : unique(fronted).slice(0, COLOURS.length);
    return { key, names, others: here.some((name) => !names.includes(name)) };
  }

  const charts = new Map();
  async function draw(id, rows, speed, title) {
    const { key, names, others } = series(rows), onFront = front(rows, speed);
    const values = rows.filter((row) => row[speed][0] > 0).map((row) => ({
      run: row.run.name, curve: row.run.curve, cache: row.run.cache, front: onFront.has(row),
      series: names.includes(row.run[key]) ? row.run[key] : "others",
      tpf: row.tpf[0], x: row[speed][0], x1: row[speed][1] || row[speed][0], x2: row[speed][2],
      y: 100 * row.score[0], y1: 100 * row.score[1], y2: 100 * row.score[2],
      ...Object.fromEntries(Object.entries(METRICS).map(([key, { head, show, interval }]) =>
        [head, show(row[key][0]) + (interval ? limits(row[key], show) : "")])),
      "measured on": measuredOn(row.run),
    }));
    const shownNames = names.filter((name) => values.some((v) => v.series === name));
    const caches = unique(runs.map((run) => run.cache));
    const byShape = key === "decoder" && caches.length > 1 && caches.length <= SHAPES.length;
    const shape = byShape ? { shape: { field: "cache", type: "nominal", title: "cache", scale: { domain: caches, range: SHAPES } } } : {};
    const domain = others ? [...shownNames, "others"] : shownNames;
    const range = shownNames.map((name) => COLOURS[names.indexOf(name)]).concat(others ? [GREY] : []);
    const x = { field: "x", type: "quantitative", title, scale: { type: "log", base: speed === "tpf" ? 2 : 10, nice: false, padding: 12 }, axis: { format: speed === "tpf" ? "~g" : "~s", tickCount: 6 } };
    const y = { field: "y", type: "quantitative", title: "score, %", scale: { zero: false, nice: true } };
    const colour = { field: "series", type: "nominal", title: key, scale: { domain, range } };
    const tooltip = ["run", ...columns().map(([, { head }]) => head), "measured on"].map((field) => ({ field, type: "nominal" }));
    const isFront = [{ filter: "datum.front" }];
    const spec = {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json",
      description: `${title} and score of ${values.length} runs; the table of runs has the same numbers`,
      width: "container", height: 320, background: null, data: { values },
      encoding: { x, y },
      layer: [
        { mark: { type: "line", strokeWidth: 1, opacity: 0.45, tooltip: false }, encoding: { color: colour, detail: { field: "curve" }, order: { field: "tpf" } } },
        { mark: { type: "rule", opacity: 0.35 }, encoding: { color: colour, x: { ...x, field: "x1" }, x2: { field: "x2" } } },
        { mark: { type: "rule", opacity: 0.35 }, encoding: { color: colour, y: { ...y, field: "y1" }, y2: { field: "y2" } } },
        { transform: isFront, mark: { type: "line", interpolate: "step-before", strokeWidth: 1.5, color: INK, tooltip: false }, encoding: { order: { field: "x" } } },
        { transform: isFront, mark: { type: "point", size: 170, color: INK, strokeWidth: 1.5, aria: false } },
        { mark: { type: "point", filled: true, size: 70, opacity: 1 }, encoding: { color: colour, tooltip, ...shape } },
      ],
      config: {
        font: "system-ui, sans-serif", axis: { labelColor: INK, titleColor: INK, gridColor: "#e6e9ed", labelFontSize: 12, titleFontSize: 12, titleFontWeight: 600 },
        legend: { orient: "bottom", columns: 4, labelColor: INK, titleColor: INK, labelFontSize: 12, titleFontSize: 12, symbolOpacity: 1 }, view: { stroke: null },
      },
    };
    charts.get(id)?.finalize();
    charts.set(id, await vegaEmbed($(id), spec, { actions: false, renderer: "svg", ast: true }));
  }
  const measuredOn = (run) => `${run.device}, batch size ${run.batch_size}${run.processes > 1 ? `, ${run.processes} processes at once` : ""}`;

  // ---- Commands

  function copyButton(run, text = "copy command") {
    const button = make("button", { type: "button", "aria-label": `Copy the command of ${run.name}`, title: run.command }, text);
    button.addEventListener("click", async () => {
      let done = "Copied";
      try { await navigator.clipboard.writeText(run.command); } catch { done = "Copy this by hand"; }
      const output = $("copied");
      output.replaceChildren(`${done}: `, make("code", {}, run.command));
      output.hidden = false;
      clearTimeout(output.timer);
      output.timer = setTimeout(() => { output.hidden = true; }, 12000);
    });
    return button;
  }

  // ---- What depends on the filters

  function card(title, row) {
    const { run } = row;
    return make("div", { class: "card" }, make("h3", {}, title), make("strong", {}, run.name),
      make("div", {}, `${shown(row, "score")} % at ${shown(row, "tpf")} TPF, ${shown(row, "tokens_per_s")} tokens/s`),
      make("div", { class: "muted" }, `${shown(row, "nfe")} forwards per sample, ${measuredOn(run)}`), copyButton(run));
  }

  function update() {
    const task = $("task").value, rows = visible();
    const where = task === ALL ? "all tasks" : task;
    $("shown").textContent = `${rows.length} of ${runs.length} runs shown, ${where}`;
    const best = rows.reduce((a, b) => (b.score[0] > a.score[0] || (b.score[0] === a.score[0] && b.tpf[0] > a.tpf[0]) ? b : a), rows[0]);
    const bound = Number($("loss").value) || 0;
    const good = rows.filter((row) => 100 * (best.score[0] - row.score[0]) <= bound + 1e-9);
    const most = (speed) => good.reduce((a, b) => (b[speed][0] > a[speed][0] ? b : a), good[0]);
    const near = `at most ${bound} point${bound === 1 ? "" : "s"}`;
    const answers = new Map([[best, ["Best score"]]]);
    for (const [speed, title] of [["tpf", "most tokens per forward"], ["tokens_per_s", "most tokens per second"]]) {
      answers.set(most(speed), [...(answers.get(most(speed)) ?? []), `${title}, ${near} below`]);
    }
    $("cards").replaceChildren(...(rows.length ? [...answers].map(([row, titles]) => card(capital(titles.join("; ")), row))
      : [make("p", {}, "No run fits these filters.")]));

    $("mixed").textContent = unique(rows.map((row) => measuredOn(row.run))).length > 1
      ? "; these runs were measured on different devices, batch sizes or beside others, so their seconds do not compare" : "";
    draw("chart-tpf", rows, "tpf", "tokens per forward");
    draw("chart-seconds", rows, "tokens_per_s", "tokens per second");

    const onFront = front(rows, "tpf");
    const name = { head: "run", value: (row) => row.run.name, cell: (row) => onFront.has(row)
      ? make("span", {}, make("span", { class: "dot", role: "img", "aria-label": "on the Pareto front" }), row.run.name) : row.run.name };
    const memory = runs.some((run) => run.peak_memory);
    $("memory-note").hidden = !memory;
    $("runs-title").textContent = `Runs, ${where}`;
    fill("runs-table", [
      name,
      { head: "command", text: true, cell: (row) => copyButton(row.run, "copy") },
      { head: "n", title: "Samples", value: (row) => row.n, cell: (row) => String(row.n) },
      ...columns().map(([key, { head, show, interval, title }]) => (
        { head, title, value: (row) => row[key][0], cell: (row) => (interval ? withInterval(row[key], show) : show(row[key][0])) })),
      ...(memory ? [{ head: "peak MB", title: "Peak memory", value: (row) => row.run.peak_memory?.bytes ?? -1,
        cell: (row) => (row.run.peak_memory ? make("span", { title: row.run.peak_memory.of }, fixed(0, 1e-6)(row.run.peak_memory.bytes)) : "\u2013") }] : []),
      { head: "measured on", text: true, value: (row) => row.run.device,
        cell: (row) => `${row.run.device}${row.run.processes > 1 ? `, ${row.run.processes} processes` : ""}` },
      { head: "batch", title: "Batch size", value: (row) => row.run.batch_size, cell: (row) => String(row.run.batch_size) },
    ], rows);
    const tasks = task === ALL ? data.tasks : [task];
    fill("task-table", [name, ...tasks.map((t) => ({
      head: t.split("/").pop().replaceAll("_", " "), title: t, value: (row) => row.run.tasks[t]?.score[0] ?? -1,
      cell: (row) => (row.run.tasks[t] ? withInterval(row.run.tasks[t].score, percent) : "\u2013"),
    }))], rows);

    const shownRuns = new Set(rows.map((row) => runs.indexOf(row.run)));
    const sweeps = data.sweeps.filter((sweep) => sweep.runs.some((i) => shownRuns.has(i)));
    $("sweeps").hidden = !data.sweeps.length;
    fill("sweep-table", [
      { head: "decoder", value: (row) => row.curve, cell: (row) => row.curve },
      { head: "runs", value: (row) => row.points, cell: (row) => String(row.points) },
      ...data.sweep_heads.map(([head, digits], i) => ({ head, value: (row) => row.values[i][0], cell: (row) => withInterval(row.values[i], fixed(digits)) })),
    ], sweeps);
  }

  // ---- Paired comparison, as `analyze compare` has it

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  const kept = new Map();
  function once(text, then) { // unpacked when first asked for
    if (!kept.has(text)) kept.set(text, unpack(text).then(then));
    return kept.get(text);
  }
  const json = (text) => once(text, (bytes) => JSON.parse(new TextDecoder().decode(bytes)));

  async function compare(a, b) {
    const { tasks, student } = sets[a.set];
    const [A, B] = await Promise.all([a.samples, b.samples].map(json));
    const names = unique(tasks), mean = (values) => values.reduce((x, y) => x + y, 0) / values.length;
    return [...names, -1].map((task, place) => {
      const of = (values) => (task < 0 ? values : values.filter((_, i) => tasks[i] === task));
      const strata = of(tasks), t = student[place], change = of(A.score).map((score, i) => 100 * (of(B.score)[i] - score));
      const columns = [B.nfe, A.nfe, A.tokens, B.tokens].map(of), means = columns.map(mean);
      const slow = ({ nfe, columns: wide }) => { // where all took equally many there are no slower ones
        const most = Math.max(...of(nfe));
        return Math.min(...of(nfe)) < most ? Math.max(most, ...of(wide)) : most;
      };
      const slower = [[slow(B), ...means.slice(1)], [means[0], slow(A), ...means.slice(2)]]; // a slow sample of B, of A
      const fewer = slower[Number(means[0] >= means[1])], faster = slower[Number(means[3] * means[1] <= means[2] * means[0])];
      const most = Math.max(100, ...change.map(Math.abs));
      return {
        task: task < 0 ? ALL : data.tasks[task], n: strata.length,
        a: 100 * mean(of(A.score)), b: 100 * mean(of(B.score)),
        difference: bounded(change, -most, most, strata, t), p: signFlipP(change),
        better: change.filter((c) => c > 0).length, worse: change.filter((c) => c < 0).length,
        nfe: product(columns.slice(0, 2), [1, -1], strata, fewer.slice(0, 2), t),
        tpf: product(columns, [-1, 1, -1, 1], strata, faster, t),
      };
    });
  }

  const signed = (digits) => (value) => (Number.isFinite(value) ? (value >= 0 ? "+" : "") + value.toFixed(digits) : "\u2013");
  const shortP = (p) => (p < 1e-4 ? p.toExponential(1) : p.toPrecision(2));
  const number = (key, head, show, title) => ({ head, title, value: (row) => row[key], cell: (row) => show(row[key]) });
  const range = (key, head, show, title) => ({ head, title, value: (row) => row[key][0], cell: (row) => withInterval(row[key], show) });
  let asked = 0; // only the last choice is shown
  async function showPair() {
    const turn = ++asked;
    const a = runs[$("run-a").value], b = runs[$("run-b").value];
    $("compare-table").replaceChildren();
    $("differing").hidden = true;
    if (a.set === undefined || a.set === null || a.set !== b.set) {
      $("verdict").textContent = "These runs decoded other samples, or are not finished, so they cannot be paired.";
      return;
    }
    const rows = await compare(a, b), all = rows.at(-1);
    if (turn !== asked) return;
    const points = signed(1);
    $("verdict").textContent = `B \u2212 A: ${points(all.difference[0])} points${limits(all.difference, points)} over ${all.n} samples, `
      + `p = ${shortP(all.p)}; B takes ${all.nfe[0].toFixed(3)} times the forwards of A.`;
    fill("compare-table", [
      { head: "task", value: (row) => row.task, cell: (row) => breakable(row.task) },
      number("n", "n", String, "Samples"), number("a", "A %", fixed(1)), number("b", "B %", fixed(1)),
      range("difference", "B \u2212 A", signed(1), "Points, 95 % interval"),
      number("p", "p", shortP, "Paired permutation test"),
      number("better", "better", String, "Samples on which B scores more"), number("worse", "worse", String, "Samples on which B scores less"),
      range("nfe", "NFE B/A", fixed(3)), range("tpf", "TPF B/A", fixed(3)),
    ], rows, (row) => (row.task === ALL ? "total" : ""));
    if (sets[a.set].questions) await showDiffering(a, b, () => turn === asked);
  }

  async function showDiffering(a, b, isWanted) {
    const packed = [a.samples, b.samples, sets[a.set].questions, a.texts, b.texts];
    const [A, B, questions, textA, textB] = await Promise.all(packed.map(json));
    if (!isWanted()) return;
    const differing = questions.map((q, i) => i).filter((i) => A.score[i] !== B.score[i]);
    const first = [...differing.filter((i) => B.score[i] < A.score[i]), ...differing.filter((i) => B.score[i] > A.score[i])].slice(0, 50);
    $("differing").hidden = !first.length;
    $("differing").firstChild.textContent = `Samples whose score differs (${first.length} of ${differing.length}, B's losses first)`;
    $("differing-list").replaceChildren(...first.map((i) => {
      const [id, prompt, target] = questions[i];
      const pairs = { prompt, target, [`A, ${percent(A.score[i])} %`]: textA[i], [`B, ${percent(B.score[i])} %`]: textB[i] };
      return make("div", { class: "sample" }, make("strong", {}, id),
        make("dl", {}, ...Object.entries(pairs).flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)])));
    }));
  }

  // ---- The page as it opens

  const models = unique(runs.map((run) => run.model));
  $("title").textContent = `${models.join(" and ")}: ${runs.length} run${runs.length > 1 ? "s" : ""}`;
  document.title = $("title").textContent;
  $("about").textContent = `Suite ${unique(runs.map((run) => run.suite)).join(", ")}; ${data.tasks.length} tasks, `
    + `${unique(runs.map((run) => run.tasks[ALL].n)).join(" or ")} samples per run; measured on ${unique(runs.map(measuredOn)).join("; ")}.`
    + (sets.length > 1 ? " The runs decoded different samples; only those over the same ones can be compared in pairs." : "");
  $("compare-legend").textContent = data.legend.compare;
  $("sweeps-legend").textContent = data.legend.sweeps;
  for (const id of ["run-a", "run-b"]) {
    runs.forEach((run, i) => $(id).append(make("option", { value: i }, run.name)));
    $(id).addEventListener("change", showPair);
  }
  $("swap").addEventListener("click", () => {
    [$("run-a").value, $("run-b").value] = [$("run-b").value, $("run-a").value];
    showPair();
  });
  const ranked = [...runs.keys()].sort((i, j) =>
    runs[j].tasks[ALL].score[0] - runs[i].tasks[ALL].score[0] || runs[j].tasks[ALL].tpf[0] - runs[i].tasks[ALL].tpf[0]);
  const rivals = ranked.slice(1).filter((i) => runs[i].set === runs[ranked[0]].set);
  const near = rivals.filter((i) => runs[ranked[0]].tasks[ALL].score[0] - runs[i].tasks[ALL].score[0] <= 0.01);
  const fastest = (list) => list.reduce((i, j) => (runs[j].tasks[ALL].tpf[0] > runs[i].tasks[ALL].tpf[0] ? j : i), list[0]);
  $("run-a").value = ranked[0];
  $("run-b").value = fastest(near) ?? rivals[0] ?? ranked[0];
  update();
  $("compare").hidden = runs.length < 2;
  if (runs.length > 1) showPair();
  const traces = read("trace-data");
  if (traces !== null && window.mountTraces) {
    $("traces").hidden = $("traces-link").hidden = false;
    window.mountTraces($("traces"), traces);
  }
})();
