"use strict";
// The report's page: what it opens with, filters, and all that depends on them. The URL keeps what a reader chose.
(() => {
  const { front } = window.algorithms;
  const { read, $, data, ALL, make, unique, capital, fixed, percent, METRICS, shown, withInterval, runName, breakable, fill, columns, draw,
    measuredOn, methods, those, showPair, showSamples, sample, LONG } = window.report;
  const { runs, sets } = data;

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
  $("task").addEventListener("change", () => { update(); showSamples(); });
  $("loss").addEventListener("input", () => update());
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("filters").addEventListener("reset", () => {
    for (const set of Object.values(chosen)) set.clear();
    setTimeout(() => { update(); showSamples(); keep(); }); // once the form is reset
  });

  const fits = (run) => Object.entries(chosen).every(([key, set]) => !set.size || set.has(run[key]));
  function visible() {
    const task = $("task").value;
    return runs.filter((run) => fits(run) && run.tasks[task]).map((run) => ({ run, ...run.tasks[task] }));
  }

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
    return make("div", { class: "card" }, make("h3", {}, title), make("strong", {}, runName(run)),
      make("div", {}, `${shown(row, "score")} % at ${shown(row, "tpf")} TPF${row.tokens_per_s[0] === null ? "" : `, ${shown(row, "tokens_per_s")} tokens/s`}`),
      make("div", { class: "muted" }, `${shown(row, "nfe")} forwards per sample, ${measuredOn(run)}`), copyButton(run));
  }

  function equalQuality() {
    const { equal } = data;
    $("equal").hidden = equal === null;
    if (equal === null) return;
    $("use").replaceChildren(...(equal.use === null ? [] : [equal.answer, " ", copyButton(runs[equal.use])]));
    $("equal-legend").textContent = equal.about;
    const rows = equal.rows.filter((row) => row.cells.some(([tpf]) => tpf) && row.runs.some((i) => fits(runs[i])));
    fill("equal-table", [
      { head: "decoder", value: (row) => row.curve, cell: (row) => runName({ ...row, name: row.curve }) },
      ...equal.heads.map((head, i) => ({ head, range: (row) => row.cells[i][0] ?? [null, null, null], cell: (row) => row.cells[i][1] })),
    ], rows, (row) => (row.is_ceiling ? "ceiling" : ""), rows.slice(0, few()));
  }

  /** The Pareto front, then the best run of each decoder by score, up to as many as a reader looks through. */
  const narrow = matchMedia("(max-width: 40rem)"), LEAD = 14, few = () => (narrow.matches ? 4 : 6); // rows of a folded table
  function leads(rows, onFront) {
    const best = new Map();
    for (const row of rows) {
      const other = best.get(row.run.decoder);
      if (!other || row.score[0] > other.score[0] || (row.score[0] === other.score[0] && row.tpf[0] > other.tpf[0])) best.set(row.run.decoder, row);
    }
    const rest = [...best.values()].sort((a, b) => b.score[0] - a.score[0] || b.tpf[0] - a.tpf[0]);
    return unique([...onFront, ...rest]).slice(0, Math.max(LEAD, onFront.size));
  }

  function update() {
    const task = $("task").value, rows = visible(), ranked = methods(rows);
    const where = task === ALL ? "all tasks" : task;
    $("shown").textContent = `${rows.length} of ${runs.length} runs shown, ${where}`;
    const rivals = those(ranked, (row) => row.run.may_be_best);
    const best = rivals.reduce((a, b) => (b.score[0] > a.score[0] || (b.score[0] === a.score[0] && b.tpf[0] > a.tpf[0]) ? b : a), rivals[0]);
    const bound = Number($("loss").value) || 0;
    const good = ranked.filter((row) => 100 * (best.score[0] - row.score[0]) <= bound + 1e-9);
    const most = (speed) => good.reduce((a, b) => (b[speed][0] > a[speed][0] ? b : a), good[0]);
    const near = `at most ${bound} point${bound === 1 ? "" : "s"}`;
    const answers = new Map([[best, ["Best score"]]]);
    for (const [speed, title] of [["tpf", "most tokens per forward"], ["tokens_per_s", "most tokens per second"]]) {
      if (speed === "tokens_per_s" && good.some((row) => row[speed][0] === null)) continue;
      answers.set(most(speed), [...(answers.get(most(speed)) ?? []), `${title}, ${near} below`]);
    }
    $("cards").replaceChildren(...(rows.length ? [...answers].map(([row, titles]) => card(capital(titles.join("; ")), row))
      : [make("p", {}, "No run fits these filters.")]));
    equalQuality();

    $("mixed").textContent = unique(rows.map((row) => measuredOn(row.run))).length > 1
      ? "; these runs were measured on different devices, with other batch sizes or next to other jobs, so their seconds do not compare" : "";
    $("no-seconds").textContent = data.no_seconds;
    const timed = rows.filter((row) => row.tokens_per_s[0] !== null).length;
    $("chart-seconds").parentElement.hidden = timed < Math.min(2, rows.length) || 2 * timed < rows.length; // a few say little
    drawAll(rows);

    const onFront = front(ranked, "tpf"), lead = leads(rows, onFront);
    $("leading").hidden = rows.length <= LONG || lead.length === rows.length;
    const name = { head: "run", value: (row) => row.run.name, cell: (row) => (onFront.has(row)
      ? make("span", {}, make("span", { class: "dot", role: "img", "aria-label": "on the Pareto front" }), runName(row.run)) : runName(row.run)) };
    const memory = runs.some((run) => run.peak_memory);
    const ceiling = (row) => (row.run.is_ceiling ? "ceiling" : "");
    $("memory-note").hidden = !memory;
    $("runs-title").textContent = `Runs, ${where}`;
    fill("runs-table", [
      name,
      { head: "command", text: true, cell: (row) => copyButton(row.run, "copy"), csv: (row) => row.run.command },
      { head: "n", title: "Samples", value: (row) => row.n, cell: (row) => String(row.n) },
      ...columns().map(([key, { head, show, interval, title }]) => (
        { head, title, range: (row) => row[key], cell: (row) => (interval ? withInterval(row[key], show) : show(row[key][0])) })),
      ...(memory ? [{ head: "peak MB", title: "Peak memory", value: (row) => row.run.peak_memory?.bytes ?? -1,
        cell: (row) => (row.run.peak_memory ? make("span", { title: row.run.peak_memory.of }, fixed(0, 1e-6)(row.run.peak_memory.bytes)) : "\u2013") }] : []),
      { head: "measured on", text: true, value: (row) => row.run.device,
        cell: (row) => `${row.run.device}${row.run.processes > 1 ? `, ${row.run.processes} processes` : ""}` },
      { head: "batch", title: "Batch size", value: (row) => row.run.batch_size, cell: (row) => String(row.run.batch_size) },
    ], rows, ceiling, lead);
    const tasks = task === ALL ? data.tasks : [task];
    fill("task-table", [name, ...tasks.map((t) => ({
      head: t.split("/").pop().replaceAll("_", " "), title: t, range: (row) => row.run.tasks[t]?.score ?? [null, null, null],
      cell: (row) => (row.run.tasks[t] ? withInterval(row.run.tasks[t].score, percent) : "\u2013"),
    }))], rows, ceiling, rows.length > LONG ? lead.slice(0, LONG) : rows);

    const shownRuns = new Set(rows.map((row) => runs.indexOf(row.run)));
    const { wordings } = data;
    if (wordings !== null) {
      const worded = wordings.rows.filter((row) => shownRuns.has(row.run));
      fill("wording-table", [
        { head: "run", value: (row) => runs[row.run].name, cell: (row) => runName(runs[row.run]) },
        ...wordings.heads.map((head, i) => ({ head, range: (row) => row.numbers[i], cell: (row) => row.cells[i] })),
      ], worded, (row) => (runs[row.run].is_ceiling ? "ceiling" : ""), worded.length > LONG ? worded.slice(0, few()) : worded);
    }
    const sweeps = data.sweeps.filter((sweep) => sweep.runs.some((i) => shownRuns.has(i)));
    $("sweeps").hidden = !data.sweeps.length;
    fill("sweep-table", [
      { head: "decoder", value: (row) => row.curve, cell: (row) => row.curve },
      { head: "runs", value: (row) => row.points, cell: (row) => String(row.points) },
      ...data.sweep_heads.map(([head, digits], i) => ({ head, range: (row) => row.values[i], cell: (row) => withInterval(row.values[i], fixed(digits)) })),
    ], sweeps, () => "", sweeps.slice(0, few()));
  }
  function drawAll(rows = visible()) {
    draw("chart-tpf", rows, "tpf", "tokens per forward");
    if (!$("chart-seconds").parentElement.hidden) draw("chart-seconds", rows, "tokens_per_s", "tokens per second");
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());

  // ---- What a reader chose, in the URL after #, so that it can be shared

  const DEFAULTS = { task: ALL, loss: $("loss").value };
  let player = null, section = "";
  const place = (name) => runs.findIndex((run) => run.name === name);
  function keep() {
    const state = { task: $("task").value, loss: $("loss").value, a: runs[$("run-a").value].name, b: runs[$("run-b").value].name,
      run: runs[$("sample-run").value]?.name ?? "", sample: sample.get(), wrong: $("wrong-only").checked ? "1" : "",
      others: $("sample-others").value, text: $("sample-text").value,
      ...player?.state(), at: section };
    for (const [key, set] of Object.entries(chosen)) state[key] = [...set].map(encodeURIComponent).join(" ");
    const kept = Object.entries(state).filter(([key, value]) => value && value !== DEFAULTS[key]);
    history.replaceState(null, "", kept.length ? `#${new URLSearchParams(kept)}` : location.pathname + location.search);
  }
  function choose(asked) {
    $("task").value = data.tasks.includes(asked.get("task")) ? asked.get("task") : ALL;
    $("loss").value = asked.get("loss") ?? DEFAULTS.loss;
    for (const [key, set] of Object.entries(chosen)) {
      const wanted = (asked.get(key) ?? "").split(" ").filter(Boolean).map(decodeURIComponent);
      for (const box of document.querySelectorAll(`input[name=${key}]`)) {
        box.checked = wanted.includes(box.value);
        set[box.checked ? "add" : "delete"](box.value);
      }
    }
    for (const [key, id] of [["a", "run-a"], ["b", "run-b"], ["run", "sample-run"]]) {
      const i = place(asked.get(key));
      if (i >= 0 && $(id).querySelector(`option[value="${i}"]`)) $(id).value = i;
    }
    $("wrong-only").checked = asked.get("wrong") === "1";
    $("sample-others").value = asked.get("others") ?? "";
    $("sample-text").value = asked.get("text") ?? "";
    if (asked.has("sample")) sample.set(asked.get("sample"));
    section = asked.get("at") ?? "";
  }
  for (const link of document.querySelectorAll("nav a")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      section = link.hash.slice(1);
      go();
      keep();
    });
  }

  // ---- On a narrow screen each row is a card, so tables of many are folded until a reader asks for them

  function fold() {
    for (const one of document.querySelectorAll(".fold")) one.open = !narrow.matches || Math.max(runs.length, data.tasks.length) <= 5;
  }
  function go() {
    for (const one of $(section).querySelectorAll(".fold")) one.open = true;
    $(section).scrollIntoView();
  }
  narrow.addEventListener("change", () => { fold(); update(); });

  // ---- The page as it opens

  const models = unique(runs.map((run) => run.model_title));
  const named = models.length <= 2 ? models.join(" and ") : models.length === 3 ? `${models[0]}, ${models[1]} and ${models[2]}` : `${models.length} models`;
  $("title").textContent = `${named}: ${runs.length} run${runs.length > 1 ? "s" : ""}`;
  document.title = $("title").textContent;
  $("about").textContent = `Suite ${unique(runs.map((run) => run.suite)).join(", ")}; ${data.tasks.length} tasks, `
    + `${unique(runs.map((run) => run.tasks[ALL].n)).join(" or ")} samples per run; measured on ${unique(runs.map(measuredOn)).join("; ")}.`
    + (sets.length > 1 ? ` The runs decoded different samples; only those over the same ones can be compared in pairs. ${data.apart}` : "");
  $("runs-legend").textContent = columns().map(([, { head, about }]) => `${capital(head)}: ${about}.`).join(" ");
  $("sweeps-legend").textContent = data.legend.sweeps;
  if (data.wordings !== null) {
    $("wordings").hidden = false;
    $("wording-verdicts").replaceChildren(...data.wordings.verdicts.map((told) => make("li", {}, told)));
    $("wording-legend").textContent = data.wordings.legend;
  }
  const better = (i, j) => runs[j].tasks[ALL].score[0] - runs[i].tasks[ALL].score[0] || runs[j].tasks[ALL].tpf[0] - runs[i].tasks[ALL].tpf[0];
  const later = ({ is_apart, is_ceiling, may_be_best }) => 4 * is_apart + 2 * is_ceiling + !may_be_best;
  const ranked = [...runs.keys()].sort((i, j) => later(runs[i]) - later(runs[j]) || better(i, j));
  const rivals = ranked.slice(1).filter((i) => runs[i].set === runs[ranked[0]].set);
  const near = rivals.filter((i) => !runs[i].is_ceiling && runs[ranked[0]].tasks[ALL].score[0] - runs[i].tasks[ALL].score[0] <= 0.01);
  const fastest = (list) => list.reduce((i, j) => (runs[j].tasks[ALL].tpf[0] > runs[i].tasks[ALL].tpf[0] ? j : i), list[0]);
  $("run-a").value = ranked[0];
  $("run-b").value = fastest(near) ?? rivals[0] ?? ranked[0];
  $("compare").hidden = runs.length < 2;
  const traces = read("trace-data");
  if (traces?.some((sample) => sample.runs.length)) {
    $("traces").hidden = false;
    player = window.mountTraces($("traces"), traces);
  }
  const asked = () => new URLSearchParams(location.hash.slice(1));
  function open() {
    choose(asked());
    player?.show(asked());
    update();
    if (runs.length > 1) showPair();
    showSamples();
    if (section && $(section)) requestAnimationFrame(go);
  }
  open();
  for (const link of document.querySelectorAll("nav a")) link.hidden = $(link.hash.slice(1)).hidden;
  fold();
  addEventListener("hashchange", open);
  for (const type of ["change", "input"]) document.querySelector("main").addEventListener(type, () => setTimeout(keep));
})();
