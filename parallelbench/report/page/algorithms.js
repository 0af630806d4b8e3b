"use strict";
// What the page computes itself, because it depends on what a reader chooses. Each has its twin in Python, and a test
// gives both the same numbers: front (stats.sweeps.pareto), interval (stats.paired.interval), signFlipP
// (stats.sweeps.sign_flip_p), replay (records.trace.replay).
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

  function quantile(sorted, q) {
    const at = (sorted.length - 1) * q, low = Math.floor(at);
    return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
  }
  function interval([value, ...draws]) {
    if (draws.some(Number.isNaN)) return [value, NaN, NaN];
    const sorted = Float64Array.from(draws).sort();
    return [value, quantile(sorted, 0.025), quantile(sorted, 0.975)];
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

  return { front, interval, signFlipP, replay };
})();
