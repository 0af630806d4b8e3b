"use strict";
// What the page computes itself, because it depends on what a reader chooses. Each has its twin in Python, and a test
// gives both the same numbers: front (stats.sweeps.pareto), bounded and product (stats.intervals), observed
// (stats.paired), signFlipP (stats.sweeps.sign_flip_p), replay (records.trace.replay).
window.algorithms = (() => {
  /** Rows that no other beats in one of speed and score and equals in the other. */
  function front(rows, speed) {
    const on = new Set();
    let best = -Infinity, last = null;
    for (const row of [...rows].sort((a, b) => b[speed][0] - a[speed][0] || b.score[0] - a.score[0])) {
      const equal = last && last[speed][0] === row[speed][0] && last.score[0] === row.score[0];
      if (row.score[0] > best || (equal && on.has(last))) on.add(row);
      best = Math.max(best, row.score[0]);
      last = row;
    }
    return on;
  }

  const Z = 1.959963984540054;
  const add = (values) => values.reduce((a, b) => a + b, 0), mean = (values) => add(values) / values.length;

  /** Deviations from the strata's means whose mean square over n is the variance of the mean. Strata of one sample are
      one; all are one where a single sample is left over. */
  function within(values, strata) {
    const count = new Map();
    for (const stratum of strata) count.set(stratum, (count.get(stratum) ?? 0) + 1);
    const alone = [...count.values()].filter((n) => n === 1).length;
    const of = strata.map((stratum) => (alone === 1 ? 0 : count.get(stratum) === 1 ? null : stratum));
    const groups = new Map();
    values.forEach((value, i) => (groups.get(of[i]) ?? groups.set(of[i], []).get(of[i])).push(value));
    const about = new Map([...groups].map(([group, own]) => [group, [mean(own), Math.sqrt(own.length / (own.length - 1))]]));
    return [values.map((value, i) => (value - about.get(of[i])[0]) * about.get(of[i])[1]), values.length - groups.size];
  }

  /** The place between low and high where a rising function is zero. */
  function root(rising, low, high) {
    for (let i = 0; i < 60; i++) {
      const middle = (low + high) / 2;
      if (rising(middle) < 0) low = middle;
      else high = middle;
    }
    return (low + high) / 2;
  }
  function nullVariance(points, shares, room) {
    const moment = (tilt) => points.reduce((sum, x, i) => sum + (shares[i] * x) / (1 - tilt * x), 0);
    const top = (1 - 1e-9) / room, tilt = moment(top) > 0 ? root(moment, 0, top) : top;
    const weights = points.map((x, i) => shares[i] / (1 - tilt * x));
    return add(points.map((x, i) => weights[i] * x * x)) + Math.max(0, 1 - add(weights)) * room * room;
  }
  function scoreLimit(spread, reach, least) {
    const n = spread.length, counts = new Map();
    for (const x of spread) counts.set(Number(x.toFixed(12)), (counts.get(Number(x.toFixed(12))) ?? 0) + 1);
    const points = [...counts.keys()], shares = [...counts.values()].map((count) => count / n);
    const room = Math.max(reach, ...points);
    if (points.length === 1) return (room * Z * Z) / (n + Z * Z);
    const statistic = (m) => Math.sqrt(n) * m - Z * Math.sqrt(nullVariance(points.map((x) => x - m), shares, room - m));
    return least >= room || statistic(least) >= 0 ? least : root(statistic, least, room * (1 - 1e-9));
  }
  function bounded(values, low, high, strata, [near], weights = values.map(() => 1)) {
    const weighted = values.map((x, i) => x * weights[i]);
    const n = values.length, value = mean(weighted);
    if (n === 1) return [value, value, value];
    const [spread, freedom] = within(weighted, strata), scale = Math.max(...weights) * Math.sqrt(n / freedom);
    const least = near * Math.sqrt(mean(spread.map((x) => x * x)) / n);
    return [value, Math.max(low, value - scoreLimit(spread.map((x) => -x), scale * (value - low), least)),
      Math.min(high, value + scoreLimit(spread, scale * (high - value), least))];
  }

  /** stats.paired.observed: the wordings of a question are one observation. tasks: a place for each task that its
      wordings share. */
  function observed(tasks, asked) {
    if (!asked || new Set(asked).size === asked.length) return { mean: (values) => values, strata: tasks, weights: tasks.map(() => 1) };
    const members = new Map();
    asked.forEach((question, i) => (members.get(question) ?? members.set(question, []).get(question)).push(i));
    const groups = [...members.values()];
    return {
      mean: (values) => groups.map((own) => Number(mean(own.map((i) => values[i])).toFixed(9))),
      strata: groups.map((own) => `${tasks[own[0]]}/${own.length}`),
      weights: groups.map((own) => (own.length * groups.length) / asked.length),
    };
  }

  function product(columns, powers, strata, unseen, [, none, there]) {
    const n = strata.length, means = columns.map(mean);
    const power = (values) => values.reduce((all, value, k) => all * value ** powers[k], 1);
    const linear = (values, at) => add(values.map((value, k) => (powers[k] * value) / at[k]));
    const rows = strata.map((_, i) => columns.map((column) => column[i]));
    const value = power(means), flat = rows.map((row) => linear(row, means));
    if (n === 1 || !means.every((m) => m > 0) || Math.max(...flat) - Math.min(...flat) < 1e-9) return [value, value, value];
    const limit = (sign, added, t) => {
      const size = n + (added ? 1 : 0), totals = columns.map((column, k) => (add(column) + (added?.[k] ?? 0)) / size);
      const [spread] = within(rows.map((row) => linear(row, totals)), strata);
      const square = add(spread.map((x) => x * x)) + (added ? (linear(added, totals) - add(powers)) ** 2 : 0);
      return power(totals) * Math.exp((sign * t * Math.sqrt(square)) / size);
    };
    const limits = [value, limit(-1, null, none), limit(1, null, none)];
    for (const added of unseen) {
      const off = power(added) / value - 1;
      if (Math.abs(off) > 5e-10) limits.push(limit(Math.sign(off), added, there));
    }
    return [value, Math.min(...limits), Math.max(...limits)];
  }

  /** Two-sided p of flipped signs: exact where all differences are alike or they are few. */
  function signFlipP(changes) {
    const moved = changes.filter((change) => change !== 0), n = moved.length;
    if (n < 2) return 1;
    const total = moved.reduce((a, b) => a + b);
    if (moved.every((change) => Math.abs(change) === Math.abs(moved[0]))) {
      const ups = moved.filter((change) => change > 0).length;
      let term = -n * Math.log(2), tail = 0; // log of C(n, k) / 2^n
      for (let k = 0; k <= Math.min(ups, n - ups); k++) {
        tail += Math.exp(term);
        term += Math.log((n - k) / (k + 1));
      }
      return Math.min(1, 2 * tail);
    }
    const exact = n <= 13, flips = exact ? 2 ** n : 9999, slack = 1e-9;
    let less = 0, more = 0, seed = 1;
    const random = () => { // mulberry32
      seed = (seed + 0x6d2b79f5) | 0;
      let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
    };
    for (let flip = 0; flip < flips; flip++) {
      let sum = 0;
      for (let i = 0; i < n; i++) sum += (exact ? (flip >> i) & 1 : random() < 0.5) ? moved[i] : -moved[i];
      if (sum <= total + slack) less++;
      if (sum >= total - slack) more++;
    }
    const one = exact ? 0 : 1; // the data itself is one of the random flips
    return Math.min(1, (2 * (Math.min(less, more) + one)) / (flips + one));
  }

  // The canvas before the first forward and after each.
  function replay(run) {
    const blank = { token: null, prob: null, at: -1, candidate: null, event: "", old: null, times: 0 };
    let cells = Array.from({ length: run.columns }, () => blank);
    const frames = [{ forward: -1, cells, end: run.columns, window: [0, run.columns] }];
    for (const step of run.steps) {
      cells = cells.map((cell) => ({ ...cell, event: "", old: null, candidate: null, prob: cell.token === null ? null : cell.prob }));
      for (const [column, token, prob] of step.writes) {
        const cell = cells[column], old = cell.token;
        const event = token === old ? "" : token === null ? "remasked" : old === null ? "committed" : "edited";
        const redone = event === "remasked" || event === "edited";
        cells[column] = { ...cell, token, prob, at: token === null ? -1 : step.forward, event, old, times: cell.times + redone };
      }
      for (const [column, token, prob] of step.open) Object.assign(cells[column], { candidate: token, prob });
      cells = cells.map((cell, column) => (column < step.end ? cell : { ...blank, cut: true }));
      frames.push({ forward: step.forward, cells, end: step.end, window: step.window });
    }
    return frames;
  }

  return { front, bounded, observed, product, signFlipP, replay };
})();
