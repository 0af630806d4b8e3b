"use strict";
// What all parts of the page share: its data, elements, numbers, tables that sort, files to save. Data is shown as text.
window.report = (() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const $ = (id) => document.getElementById(id);
  const data = read("data");
  const ALL = "all";

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
    [name, { head, about, show: fixed(digits, scale, unit), interval, title: capital(about) }]));
  const shown = (row, name) => METRICS[name].show(row[name][0]);
  const limits = ([, low, high], show) => (low === high ? "" : ` [${show(low)}, ${show(high)}]`); // equal: there are none
  const withInterval = (row, show) => make("span", {}, show(row[0]), make("span", { class: "interval" }, limits(row, show)));
  const word = (text) => make("span", { class: "word" }, ...text.split(/(?<=[/_=])/).flatMap((part) => [part, make("wbr")]));
  const breakable = (name) => make("span", {}, ...name.split(/( )/).map((part) => (part === " " ? part : word(part)))); // a knob stays whole where it fits
  const tagOf = (run) => (run.is_ceiling ? "ceiling" : run.text_of ? `same text as ${run.text_of}` : "");
  const runName = (run) => (tagOf(run) ? make("span", {}, breakable(run.name), make("span", { class: "tag" }, tagOf(run))) : breakable(run.name));

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  const kept = new Map();
  function json(text) { // unpacked when first asked for
    if (!kept.has(text)) kept.set(text, unpack(text).then((bytes) => JSON.parse(new TextDecoder().decode(bytes))));
    return kept.get(text);
  }

  // ---- Tables: columns are {head, title, value(row), range(row), cell(row), text, csv(row)}; the first one names its row

  const LONG = 12; // rows from which on a table shows only those that lead, until a reader asks for all
  const order = new Map(); // table id to [column, direction]
  const whole = new Set(); // ids of long tables that a reader has opened
  const filled = new Map(); // table id to its columns and rows, as they were shown last
  function fill(id, columns, rows, className = () => "", leads = rows) {
    const table = $(id), lead = new Set(leads);
    const valueOf = (column) => column.value ?? ((row) => column.range(row)[0]);
    const [by, direction] = order.get(id) ?? [null, 1];
    const sorted = by === null ? rows : [...rows].sort((a, b) => direction * compareValues(valueOf(columns[by])(a), valueOf(columns[by])(b)));
    const heads = columns.map((column, i) => {
      const sorts = Boolean(column.value || column.range);
      const button = make("button", { type: "button", title: column.title ?? `Sort by ${column.head}` }, column.head);
      const head = make("th", { scope: "col" }, sorts ? button : column.head);
      if (i === by) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      button.addEventListener("click", () => {
        order.set(id, [i, i === by ? -direction : rows.length && typeof valueOf(column)(rows[0]) === "number" ? -1 : 1]);
        fill(id, columns, rows, className, leads);
        table.tHead.rows[0].cells[i].firstChild.focus();
      });
      return head;
    });
    const folds = rows.length > LONG && lead.size < rows.length;
    const body = sorted.filter((row) => !folds || whole.has(id) || lead.has(row)).map((row) => make("tr", { class: className(row) }, ...columns.map((column, i) => make(i ? "td" : "th",
      i ? { class: column.text ? "text" : "", "data-head": column.head } : { scope: "row" }, column.cell(row)))));
    table.replaceChildren(make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
    filled.set(id, [columns, sorted]);
    $(`${id}-more`)?.remove();
    if (!folds) return;
    const more = make("button", { type: "button", id: `${id}-more`, class: "more", "aria-expanded": whole.has(id) },
      whole.has(id) ? `Show ${lead.size} of ${rows.length} rows` : `Show all ${rows.length} rows`);
    more.addEventListener("click", () => {
      whole[whole.has(id) ? "delete" : "add"](id);
      fill(id, columns, rows, className, leads);
      $(`${id}-more`).focus();
    });
    table.parentElement.after(more);
  }
  const isNumber = (value) => typeof value === "number" || value === null;
  function compareValues(a, b) {
    if (isNumber(a) && isNumber(b)) return (a ?? -Infinity) - (b ?? -Infinity) || 0;
    const parts = [a, b].map((text) => String(text ?? "").split(/(\d+(?:\.\d+)?)/)); // words and numbers, in turn
    for (let i = 0; i < Math.min(parts[0].length, parts[1].length); i++) {
      const [x, y] = [parts[0][i], parts[1][i]];
      const by = i % 2 ? Number(x) - Number(y) : x.localeCompare(y, "en");
      if (by) return by;
    }
    return parts[0].length - parts[1].length;
  }

  // ---- Files

  function save(name, type, text) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  function csv(id) {
    const [columns, rows] = filled.get(id), told = columns.filter((column) => column.csv || column.value || column.range);
    const quoted = (cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
    const cells = (column, row) => (column.range ? column.range(row) ?? [null, null, null] : [(column.csv ?? column.value)(row)]);
    const heads = told.flatMap(({ head, range }) => (range ? [head, `${head} low`, `${head} high`] : [head]));
    const lines = [heads, ...rows.map((row) => told.flatMap((column) => cells(column, row)))];
    return lines.map((line) => line.map((cell) => quoted(String(cell ?? ""))).join(",")).join("\n") + "\n";
  }
  for (const button of document.querySelectorAll("[data-csv]")) {
    button.addEventListener("click", () => save(`${button.dataset.csv}.csv`, "text/csv", csv(button.dataset.csv)));
  }

  return { read, $, data, ALL, make, unique, capital, fixed, percent, METRICS, shown, limits, withInterval, breakable, runName,
    json, fill, save, LONG };
})();
