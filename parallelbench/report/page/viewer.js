// Shows saved decodes: the canvas after each forward, one run or two side by side on the same prompt.
// mountTraces(element, data): data is what parallelbench/report/page/viewer.py makes. Text enters as text only. It opens on
// the sample on which two runs differ most, and returns what is chosen (`state`) and how to choose it (`show`).
(() => {
  "use strict";
  const { replay } = window.algorithms;
  const LEVELS = [0.5, 0.7, 0.9, 0.99]; // where the next colour begins
  const PER_SECOND = 2;

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
  const percent = (p) => `${(100 * p).toFixed(1)} %`;
  const level = (p) => (p === null ? "unknown" : `p${LEVELS.filter((bound) => p >= bound).length}`);
  // a token as a reader sees it: ends of lines, blanks alone, and what would not show or would turn the text around
  const visible = (text) => (text.trim() ? text.trim() : text.replace(/ /g, "\u2423").replace(/\n/g, "\u21b5"))
    .replace(/[\p{C}\u2028\u2029]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

  const isWrong = (run, cell, column) =>
    run.expected !== null && cell.token !== null && column < run.expected.length && cell.token !== run.expected[column];

  // One run: its canvas, what the forward did, and where the answer went wrong. show(n): after n forwards.
  function panel(run, goTo) {
    const frames = replay(run), last = frames[frames.length - 1].cells;
    const root = make("article", "tv-panel"), canvas = make("ol", "tv-canvas"), what = make("p", "tv-what");
    const text = (token) => (token === null ? "" : visible(run.texts[token] ?? `#${token}`));
    const cost = `score ${run.score.toFixed(2)}; ${plural(run.num_tokens, "token")} in ${plural(run.nfe, "forward")}`;
    root.append(make("h3", "", run.name), make("p", "tv-cost", `${cost} = ${(run.num_tokens / run.nfe).toFixed(2)} per forward`));
    root.append(canvas, what, outcome());

    // what is after the end of the answer and its EOS is drawn narrow, without its text
    const places = last.map((_, column) => {
      const item = make("li"), widest = Math.max(...frames.map(({ cells }) =>
        text(cells[column].token ?? cells[column].candidate).length), 1);
      if (column <= run.length) item.style.minWidth = `${Math.max(Math.min(widest, 16), 2) + 1.2}ch`;
      canvas.append(item);
      if (last[column].token !== null && (run.texts[last[column].token] ?? "").includes("\n")) {
        const line = make("li", "tv-line"); // squares and lists stand as they will be read
        line.setAttribute("aria-hidden", "true");
        canvas.append(line);
      }
      return item;
    });

    function outcome() {
      const list = make("ul", "tv-mistakes"), verdict = `\u2717 The answer is ${run.score ? "not fully right" : "wrong"}`;
      const wrong = last.map((cell, column) => [cell, column]).filter(([cell, column]) => isWrong(run, cell, column));
      if (run.score === 1) return make("p", "tv-result", "\u2713 The answer is right.");
      if (run.expected === null)
        return make("p", "tv-result", `${verdict}. It has ${plural(run.length, "token")}, the reference ` +
          `${run.reference_length}: columns cannot be compared.`);
      const box = make("div", "tv-result");
      box.append(make("p", "", `${verdict}; tokens not as in the reference: ${wrong.length}`), list);
      for (const [cell, column] of wrong) {
        const others = last.slice(0, run.length).filter((other) => other.at === cell.at).length - 1;
        const sure = cell.prob === null ? "" : `, confidence ${percent(cell.prob)}`;
        const button = make("button", "", `${text(cell.token)} for ${text(run.expected[column])}`);
        button.type = "button";
        button.addEventListener("click", () => goTo(cell.at + 1));
        const item = make("li");
        const company = others ? `with ${plural(others, "other")}` : "alone";
        item.append(button, `column ${column + 1}, by forward ${cell.at + 1} ${company}${sure}`);
        list.append(item);
      }
      return box;
    }

    function draw(item, cell, column, frame, now) {
      const event = now ? cell.event : "", wrong = isWrong(run, cell, column), masked = cell.token === null;
      const shown = cell.cut ? "" : masked ? text(cell.candidate) : text(cell.token);
      const mark = { remasked: "\u21ba", edited: "\u270e", committed: "+" }[event] ?? "";
      const before = cell.times && event !== "remasked" && event !== "edited" ? "\u2022" : "";
      const kinds = { tail: column > run.length, masked, wrong, outside: column < frame.window[0] || column >= frame.window[1] };
      const names = Object.keys(kinds).filter((kind) => kinds[kind]);
      item.className = ["tv-cell", cell.cut ? "cut" : level(cell.prob), event, ...names].join(" ");
      item.replaceChildren(make("span", "tv-mark", `${mark}${before}${wrong ? "\u2717" : ""}`), make("span", "tv-text", shown),
        make("span", "tv-order", masked ? "" : `${cell.at + 1}`));
      const sure = cell.prob === null ? "" : `, confidence ${percent(cell.prob)}`;
      item.title = [`column ${column + 1}: `, cell.cut ? "cut off" : masked ? `masked${shown && `, likeliest ${shown}`}${sure}` :
        `${shown}, forward ${cell.at + 1}${sure}`, cell.old !== null && event ? `; ${event}, was ${text(cell.old)}` : "",
        cell.times ? `; masked again or edited ${plural(cell.times, "time")}` : "",
        wrong ? `; the reference has ${text(run.expected[column])}` : ""].join("");
    }

    return { root, forwards: run.nfe, show(n) {
      const frame = frames.findLast(({ forward }) => forward < n);
      frame.cells.forEach((cell, column) => draw(places[column], cell, column, frame, frame.forward === n - 1));
      const number = (event) => frame.cells.filter((cell) => cell.event === event).length;
      const did = [["committed", "committed"], ["remasked", "masked again"], ["edited", "edited"]]
        .filter(([event]) => number(event)).map(([event, words]) => `${number(event)} ${words}`).join(", ");
      const left = frame.cells.filter((cell) => cell.token === null && !cell.cut).length;
      what.textContent = n === 0 ? "All columns are masked." : n > run.nfe ? `Finished after ${plural(run.nfe, "forward")}.` :
        `Forward ${n}: ${frame.forward < n - 1 ? "nothing written" : did || "nothing changed"}; ${left} masked.`;
    } };
  }

  function legend() {
    const list = make("ul", "tv-legend"), bounds = [0, ...LEVELS];
    list.setAttribute("aria-label", "Legend");
    const entry = (className, sample, words) => {
      const item = make("li"), cell = make("span", `tv-cell ${className}`);
      cell.append(make("span", "tv-text", sample));
      item.append(cell, words);
      list.append(item);
    };
    bounds.forEach((bound, i) => entry(`p${i}`, "ab", i ? `${100 * bound} % or more` : `confidence below ${100 * LEVELS[0]} %`));
    entry("unknown", "ab", "confidence not known");
    entry("masked p2", "ab", "masked, with its likeliest token");
    entry("committed p4", "+", "committed by this forward");
    entry("remasked masked p2", "\u21ba", "masked again");
    entry("edited p4", "\u270e", "edited; \u2022 redone before");
    entry("wrong p4", "\u2717", "not as in the reference");
    entry("cut", "\u00a0", "cut off by the stop rule; narrow: after the answer's end");
    return list;
  }

  // The runs of a sample that differ most, the better and slower one first, and by how much: in score, then in forwards.
  function contrast({ runs }) {
    const extreme = (sign) => [...runs.keys()].reduce((i, j) =>
      (sign * (runs[j].score - runs[i].score || runs[j].nfe - runs[i].nfe) > 0 ? j : i), 0);
    const [slow, fast] = [extreme(1), extreme(-1)];
    return { pair: [slow, slow === fast ? "" : fast], gap: 100 * (runs[slow].score - runs[fast].score) + Math.log(runs[slow].nfe / runs[fast].nfe) };
  }

  window.mountTraces = (element, data) => {
    let panels = [], forwards = 0, at = 0, timer = null;
    const uid = `tv${document.querySelectorAll(".tv").length}`;
    const root = make("div", "tv"), bar = make("div", "tv-bar"), player = make("div", "tv-bar"), stage = make("div", "tv-panels");
    const control = (parent, tag, id, words) => {
      const label = make("label", "", words), field = make(tag);
      label.htmlFor = field.id = `${uid}-${id}`;
      parent.append(label, field);
      return field;
    };
    const option = (select, value, words, disabled = false) => {
      const choice = new Option(words, value);
      choice.disabled = disabled;
      select.append(choice);
    };
    const button = (words, action) => {
      const made = make("button", "", words);
      made.type = "button";
      made.addEventListener("click", action);
      player.append(made);
      return made;
    };

    const sampleField = control(bar, "select", "sample", "Sample");
    const fields = [control(bar, "select", "a", "Run"), control(bar, "select", "b", "next to")];
    button("Start", () => goTo(0));
    button("Back", () => goTo(at - 1));
    const playButton = button("Play", () => play(timer === null));
    button("Next", () => goTo(at + 1));
    button("End", () => goTo(forwards));
    const slider = control(player, "input", "forward", "Forward");
    Object.assign(slider, { type: "range", min: 0, step: 1 });
    const where = make("output");
    where.htmlFor = slider.id;
    player.append(where);
    const question = make("dl", "tv-question");
    root.append(make("h2", "", "Traces"), make("p", "", "The answer's columns after each forward. A number below a token is the " +
      "forward that committed it; colours are the model's confidence. Arrow keys step, Home and End jump."),
      bar, question, player, stage, legend(), make("p", "muted", "The reference is a right answer: of many, the one " +
      "nearest to the run's own where the task can tell; elsewhere a difference from it need not be a mistake."));
    element.append(root);

    function goTo(n) {
      at = Math.max(0, Math.min(forwards, n));
      for (const one of panels) one.show(at);
      slider.value = at;
      where.textContent = `${at} of ${forwards}`;
      if (at === forwards) play(false);
    }
    function play(on) {
      if (timer !== null) clearInterval(timer);
      timer = null;
      if (on) {
        if (at === forwards) goTo(0);
        timer = setInterval(() => goTo(at + 1), 1000 / PER_SECOND);
      }
      playButton.textContent = on ? "Pause" : "Play";
    }
    function open() {
      play(false);
      const sample = data[sampleField.value], chosen = fields.map((field) => field.value).filter((value) => value !== "");
      panels = chosen.map((i) => panel(sample.runs[i], (n) => { play(false); goTo(n); }));
      stage.replaceChildren(...panels.map((one) => one.root));
      forwards = Math.max(...panels.map((one) => one.forwards));
      slider.max = forwards;
      goTo(0);
    }
    function choose(before = fields.map((field) => field.selectedOptions[0]?.textContent)) {
      const sample = data[sampleField.value], { pair } = contrast(sample);
      fields.forEach((field, place) => {
        field.replaceChildren();
        if (place) option(field, "", "no other run");
        sample.runs.forEach((run, i) => option(field, i, run.name));
        const kept = sample.runs.findIndex((run) => run.name === before[place]);
        field.value = kept >= 0 ? kept : before[place] === undefined ? pair[place] : place ? "" : 0;
      });
      question.replaceChildren(make("dt", "", "Prompt"), make("dd", "", sample.prompt), make("dt", "", "A right answer"),
        make("dd", "", sample.target));
      open();
    }

    data.forEach((sample, i) => {
      let group = [...sampleField.children].find((child) => child.label === sample.task);
      if (!group) {
        group = make("optgroup");
        group.label = sample.task;
        sampleField.append(group);
      }
      option(group, i, sample.id + (sample.runs.length ? "" : " (not in this page, too large)"), !sample.runs.length);
    });
    sampleField.addEventListener("change", () => choose());
    for (const field of fields) field.addEventListener("change", open);
    slider.addEventListener("input", () => { play(false); goTo(Number(slider.value)); });
    root.addEventListener("keydown", (event) => {
      const target = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: forwards }[event.key];
      if (target === undefined || event.target.tagName === "SELECT" || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      play(false);
      goTo(target);
    });
    return {
      state() {
        const [left, right] = fields.map((field) => field.selectedOptions[0].textContent);
        return { trace: data[sampleField.value].id, left, right };
      },
      show(asked) {
        const known = data.map((sample) => sample.runs.length > 0), gaps = data.map((sample, i) => (known[i] ? contrast(sample).gap : -1));
        const wanted = data.findIndex((sample, i) => known[i] && sample.id === asked.get("trace"));
        sampleField.value = wanted >= 0 ? wanted : gaps.indexOf(Math.max(...gaps));
        choose(wanted >= 0 ? [asked.get("left") ?? undefined, asked.get("right") ?? undefined] : []);
      },
    };
  };
})();
