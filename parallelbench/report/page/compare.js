"use strict";
// Two runs sample by sample, as `analyze compare` has it.
(() => {
  const { bounded, observed, product, signFlipP } = window.algorithms;
  const { $, data, ALL, make, unique, fixed, percent, limits, withInterval, breakable, json, fill } = window.report;
  const { runs, sets } = data;

  async function compare(a, b) {
    const { tasks, asked, student } = sets[a.set];
    const [A, B] = await Promise.all([a.samples, b.samples].map(json));
    const names = unique(tasks), mean = (values) => values.reduce((x, y) => x + y, 0) / values.length;
    return [...names, -1].map((task, place) => {
      const of = (values) => (task < 0 ? values : values.filter((_, i) => tasks[i] === task));
      const t = student[place], moved = of(A.score.map((score, i) => 100 * (B.score[i] - score)));
      const one = observed(of(tasks).map((i) => data.tasks[i].split("@")[0]), asked && of(asked));
      const { strata, weights } = one, change = one.mean(moved), most = Math.max(...weights), weigh = (values) => values.map((x, i) => x * weights[i]);
      const columns = [B.nfe, A.nfe, A.tokens, B.tokens].map((values) => weigh(one.mean(of(values)))), means = columns.map(mean);
      const slow = ({ nfe, columns: wide }) => { // where all took equally many there are no slower ones
        const longest = Math.max(...of(nfe));
        return Math.min(...of(nfe)) < longest ? Math.max(longest, ...of(wide)) : longest;
      };
      const slower = [[slow(B), ...means.slice(1)], [means[0], slow(A), ...means.slice(2)]] // a slow sample of B, of A
        .map((sample) => sample.map((x) => most * x));
      const bound = Math.max(100, ...change.map(Math.abs));
      return {
        task: task < 0 ? ALL : data.tasks[task], n: moved.length, questions: change.length,
        a: 100 * mean(of(A.score)), b: 100 * mean(of(B.score)),
        difference: bounded(change, -bound, bound, strata, t, weights), p: signFlipP(weigh(change)),
        better: moved.filter((c) => c > 0).length, worse: moved.filter((c) => c < 0).length,
        nfe: product(columns.slice(0, 2), [1, -1], strata, slower.map((sample) => sample.slice(0, 2)), t),
        tpf: product(columns, [-1, 1, -1, 1], strata, slower, t),
      };
    });
  }

  /** With a sign; what rounds to zero but is none says so. */
  const signed = (digits) => (value) => {
    if (!Number.isFinite(value)) return "\u2013";
    const zero = Math.abs(value) < 1e-9, text = (zero ? 0 : Math.abs(value)).toFixed(digits), sign = zero || value > 0 ? "+" : "-";
    return !zero && Number(text) === 0 ? `${sign}<${(10 ** -digits / 2).toFixed(digits + 1)}` : sign + text;
  };
  const shortP = (p) => (p < 1e-4 ? p.toExponential(1) : p.toPrecision(2));
  const number = (key, head, show, title) => ({ head, title, value: (row) => row[key], cell: (row) => show(row[key]) });
  const { few, undecided } = data.compare;
  const forwards = (ratio) => { // of B over A
    const change = Math.abs(100 * (ratio - 1));
    return change < 0.5 ? "both need the same number of forward passes."
      : `B needs ${change.toFixed(0)} % ${ratio < 1 ? "fewer" : "more"} forward passes than A.`;
  };
  const cut = (row, values) => (row.questions < few ? [values[0], values[0], values[0]] : values);
  const withWord = (row, values, show) => (row.questions < few ? `${show(values[0])} (too few samples)` : withInterval(values, show));
  const range = (key, head, show, title) => ({ head, title, range: (row) => row[key], cell: (row) => withWord(row, row[key], show) });
  const isUndecided = ({ questions, difference: [, low, high], p }) => questions >= few && (low > 0 || high < 0) !== (p < 0.05);
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
    $("verdict").textContent = `B \u2212 A: ${points(all.difference[0])} points${limits(cut(all, all.difference), points)} over ${all.n} samples`
      + `${all.questions < few ? " (too few for an interval)" : ""}, p = ${shortP(all.p)}${isUndecided(all) ? "*" : ""}; ${forwards(all.nfe[0])}`;
    fill("compare-table", [
      { head: "task", value: (row) => row.task, cell: (row) => breakable(row.task) },
      number("n", "n", String, "Samples"), number("a", "A %", fixed(1)), number("b", "B %", fixed(1)),
      range("difference", "B \u2212 A", signed(1), "Points, 95 % interval"),
      { ...number("p", "p", shortP, "Paired permutation test"), cell: (row) => shortP(row.p) + (isUndecided(row) ? "*" : "") },
      number("better", "better", String, "Samples on which B scores more"), number("worse", "worse", String, "Samples on which B scores less"),
      range("nfe", "NFE B/A", fixed(3)), range("tpf", "TPF B/A", fixed(3)),
    ], rows, (row) => (row.task === ALL ? "total" : ""));
    $("compare-legend").textContent = (rows.some(isUndecided) ? `${undecided} ` : "") + data.legend.compare;
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

  $("compare-legend").textContent = data.legend.compare;
  for (const id of ["run-a", "run-b"]) {
    runs.forEach((run, i) => $(id).append(make("option", { value: i }, run.name)));
    $(id).addEventListener("change", showPair);
  }
  $("swap").addEventListener("click", () => {
    [$("run-a").value, $("run-b").value] = [$("run-b").value, $("run-a").value];
    $("run-a").dispatchEvent(new Event("change", { bubbles: true }));
  });
  Object.assign(window.report, { showPair });
})();
