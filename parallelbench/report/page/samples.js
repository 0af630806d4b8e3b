"use strict";
// Any sample of a run: prompt, answers and scores; of all samples or of the wrong ones.
(() => {
  const { $, data, ALL, make, percent, json } = window.report;
  const { runs, sets } = data;
  const browsable = [...runs.keys()].filter((i) => runs[i].texts && sets[runs[i].set]?.questions);
  let wanted = ""; // the sample's id, kept from run to run
  let asked = 0;

  /** For each sample the number of runs over the same samples in which it is right, and of those in which it is not. */
  async function acrossRuns(run) {
    const scores = (await Promise.all(runs.filter((other) => other.set === run.set).map((other) => json(other.samples)))).map(({ score }) => score);
    return scores[0].map((_, i) => [scores.filter((score) => score[i] >= 1).length, scores.filter((score) => score[i] < 1).length]);
  }
  const FITS = { "": () => true, some: ([right]) => right > 0, none: ([right]) => !right, mixed: ([right, wrong]) => right > 0 && wrong > 0 };

  async function showSamples() {
    const turn = ++asked, run = runs[$("sample-run").value], { tasks, questions: packed } = sets[run.set];
    const fits = FITS[$("sample-others").value] ?? FITS[""], text = $("sample-text").value.trim().toLowerCase();
    const [numbers, questions, texts, across] = await Promise.all([...[run.samples, packed, run.texts].map(json),
      fits === FITS[""] ? null : acrossRuns(run)]);
    if (turn !== asked) return;
    const task = $("task").value, onlyWrong = $("wrong-only").checked;
    const inTask = questions.map((_, i) => i).filter((i) => task === ALL || data.tasks[tasks[i]] === task);
    const wrong = inTask.filter((i) => numbers.score[i] < 1);
    const listed = (onlyWrong ? wrong : inTask).filter((i) => (!across || fits(across[i]))
      && (!text || [...questions[i], texts[i]].some((one) => one.toLowerCase().includes(text))));
    $("sample-count").textContent = `${wrong.length} of ${inTask.length} samples are not fully right`
      + (listed.length === (onlyWrong ? wrong : inTask).length ? "" : `; ${listed.length} found`);
    $("sample-id").replaceChildren(...listed.map((i) =>
      make("option", { value: i }, `${numbers.score[i] < 1 ? "\u2717" : "\u2713"} ${questions[i][0]}`)));
    const place = Math.max(listed.findIndex((i) => questions[i][0] === wanted), 0);
    $("sample-id").selectedIndex = listed.length ? place : -1;
    $("sample-before").disabled = place === 0;
    $("sample-next").disabled = place >= listed.length - 1;
    if (!listed.length) {
      $("sample-view").replaceChildren(make("p", {}, "No such sample."));
      return;
    }
    const i = listed[place], [id, prompt, target] = questions[i];
    wanted = id;
    const further = Object.keys(numbers).filter((key) => key.startsWith("score:")).map((key) => [key.slice(6), numbers[key][i]]);
    const scores = [["score", numbers.score[i]], ...further].filter(([, value]) => value !== null);
    const told = {
      prompt, "a right answer": target, "its answer": texts[i],
      scores: scores.map(([name, value]) => `${name} ${percent(value)} %`).join(", "),
      cost: `${numbers.tokens[i]} tokens before EOS in ${numbers.nfe[i]} forwards (TPF ${(numbers.tokens[i] / numbers.nfe[i]).toFixed(2)})`,
    };
    const link = make("a", { href: `#${new URLSearchParams({ run: run.name, sample: id, at: "samples" })}` }, "link to it");
    $("sample-view").replaceChildren(make("strong", {}, id), " ", link,
      make("dl", {}, ...Object.entries(told).flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)])));
  }
  function step(by) {
    $("sample-id").selectedIndex += by;
    $("sample-id").dispatchEvent(new Event("change", { bubbles: true }));
  }
  $("sample-before").addEventListener("click", () => step(-1));
  $("sample-next").addEventListener("click", () => step(1));
  for (const i of browsable) $("sample-run").append(make("option", { value: i }, runs[i].name));
  $("sample-id").addEventListener("change", () => {
    wanted = $("sample-id").selectedOptions[0].textContent.slice(2);
    showSamples();
  });
  for (const id of ["sample-run", "wrong-only", "sample-others"]) $(id).addEventListener("change", showSamples);
  $("sample-text").addEventListener("input", showSamples);
  $("samples").hidden = !browsable.length;
  Object.assign(window.report, {
    showSamples: () => (browsable.length ? showSamples() : undefined),
    sample: { get: () => wanted, set: (id) => { wanted = id; } },
  });
})();
