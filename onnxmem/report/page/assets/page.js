/* What the page does beyond what Python wrote: theme, sorting, filtering, the batch, the chart. */
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, css, text) => {
    const element = document.createElement(tag);
    if (css) element.className = css;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const UNKNOWN = "\u2026";

  /* Numbers as Python writes them: halves go to the even digit. Bytes are BigInt, and exact. */
  const grouped = (count) => count.toString().replace(/\B(?=(\d{3})+$)/g, ",");
  const divided = (count, by) => {
    const whole = count / by, twice = 2n * (count % by);
    return twice > by || (twice === by && whole % 2n === 1n) ? whole + 1n : whole;
  };
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  function bytesText(bytes) {
    if (bytes === null) return "unknown";
    if (bytes < 0n) return `-${bytesText(-bytes)}`;
    if (bytes < 1024n) return `${bytes} B`;
    let unit = 0, by = 1n;
    while (2n * bytes >= 2047n * by && unit + 1 < UNITS.length) { by *= 1024n; unit += 1; }
    const decimals = bytes < 10n * by ? 2 : bytes < 100n * by ? 1 : 0;
    const digits = divided(bytes * 10n ** BigInt(decimals), by).toString().padStart(decimals + 1, "0");
    const cut = digits.length - decimals;
    return `${digits.slice(0, cut)}${decimals ? `.${digits.slice(cut)}` : ""} ${UNITS[unit]}`;
  }
  function rounded(value, decimals) {
    /* toFixed rounds halves up; a double's own digits say whether it is a half. */
    const [whole, rest] = value.toFixed(60).split(".");
    const scaled = BigInt(whole + rest);
    const text = divided(scaled, 10n ** BigInt(60 - decimals)).toString().padStart(decimals + 1, "0");
    return decimals ? `${text.slice(0, -decimals)}.${text.slice(-decimals)}` : text;
  }
  function countText(count) {
    if (count === null) return "unknown";
    if (count < 10000n) return grouped(count);
    let power = 1;
    while (2n * count >= 1999n * 1000n ** BigInt(power) && power < 6) power += 1;
    const value = Number(count) / Number(1000n ** BigInt(power));
    const decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    const text = rounded(value, decimals);
    return `${decimals ? text.replace(/\.?0+$/, "") : text} ${"kMGTPE"[power - 1]}`;
  }
  const written = (value, unit) => (unit === "count" ? countText(value) : bytesText(value));

  /* Theme. */
  const theme = byId("onnxmem-theme"), dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const themed = [];
  function retheme() {
    theme.textContent = isDark() ? "Light" : "Dark";
    themed.forEach((draw) => draw());
  }
  theme.hidden = false;
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    retheme();
  });
  dark.addEventListener("change", retheme);
  retheme();

  /* Tables that sort by a head and leave the rows that hold a word. */
  const resorts = new Map();
  function sortable(table) {
    const body = table.tBodies[0];
    let sorted = null;
    const value = (row, column) => {
      const cell = row.cells[column], number = cell.dataset.value;
      return number !== undefined && number !== "" ? Number(number) : null;
    };
    function sort() {
      if (!sorted) return;
      const { column, direction, isNumber } = sorted;
      const compare = isNumber
        ? (one, other) => {
          const a = value(one, column), b = value(other, column);
          if (a === null || b === null) return (a === null) - (b === null);
          return direction * (a - b);
        }
        : (one, other) => direction * one.cells[column].textContent.localeCompare(other.cells[column].textContent, "en", { numeric: true });
      body.append(...[...body.rows].sort(compare));
    }
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = make("button", "", head.textContent), isNumber = head.classList.contains("num");
      button.type = "button";
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const again = sorted && sorted.column === column;
        const direction = again ? -sorted.direction : isNumber && head.textContent !== "step" ? -1 : 1;
        sorted = { column, direction, isNumber };
        all("th", table.tHead).forEach((each) => each.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
        sort();
      });
    });
    if (table.dataset.sorted) {
      const column = Number(table.dataset.sorted);
      sorted = { column, direction: -1, isNumber: true };
      table.tHead.rows[0].cells[column].setAttribute("aria-sort", "descending");
    }
    resorts.set(table, sort);
  }
  all("table.sortable").forEach(sortable);
  /* On a phone the cells of a row stand below each other, each with the name of its column. */
  const phone = matchMedia("(max-width: 640px)");
  function label() {
    if (!phone.matches) return;
    for (const table of all("table.stacks")) {
      const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
      for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, column) => { cell.dataset.label = heads[column]; });
    }
  }
  phone.addEventListener("change", label);
  label();
  all("input[data-filters]").forEach((input) => {
    const table = byId(input.dataset.filters), box = input.closest(".filter"), count = box.querySelector("output");
    box.hidden = false;
    const rows = [...table.tBodies[0].rows];
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = words.length ? `${grouped(shown)} of ${grouped(rows.length)} rows` : "";
    });
  });

  const embedded = byId("onnxmem-data");
  if (!embedded) return;
  const data = JSON.parse(embedded.textContent);
  if (!data || !data.figures) return;

  /* The batch. A figure is shown at the batches at which it was computed, and
     between them where it is proven to be linear in the batch. */
  const stops = data.stops || [];
  const big = (value) => (value === null || value === undefined ? null : BigInt(value));
  function known(key, batch) {
    const moves = data.figures[key], at = stops.indexOf(batch);
    if (!moves) return undefined;
    if (at >= 0) return big(moves.at[at]);
    const line = moves.lines.find(([first, last]) => first <= batch && batch <= last);
    return line ? BigInt(line[2]) + BigInt(line[3]) * BigInt(batch) : derived(key, batch);
  }
  /* Rules that round up the elements of one sample. */
  function derived(key, batch) {
    if (!key.startsWith("rules_of_thumb.")) return undefined;
    const needed = ["elements.activations", "elements.inputs", "weights.parameters"].map((each) => known(each, batch));
    if (needed.some((each) => each === undefined || each === null)) return undefined;
    const n = BigInt(batch), [activations, inputs, parameters] = needed;
    const [a, i] = [activations, inputs].map((each) => (each + n - 1n) / n);
    if (key.endsWith(".three_params_two_activations_bytes")) return 4n * (3n * parameters + 2n * n * a + n * i);
    if (key.endsWith(".batch_times_tensors_and_params_bytes")) return 4n * n * (a + i + parameters);
    return undefined;
  }
  const isLine = (key, two) => {
    const moves = data.figures[key];
    return Boolean(moves && moves.lines.some(([first, last]) => first <= stops[two[0]] && stops[two[1]] <= last));
  };
  const neighbors = (batch) => {
    const after = stops.findIndex((stop) => stop > batch);
    return after > 0 ? [after - 1, after] : null;
  };
  function textAt(key, batch) {
    const text = data.texts[key], at = stops.indexOf(batch);
    if (at >= 0) return text.at[at];
    const range = (text.ranges || []).find(([first, last]) => first <= batch && batch <= last);
    if (range) return range[2];
    const two = neighbors(batch);
    if (!two || !isLine(text.of, two) || text.at[two[0]] !== text.at[two[1]]) return UNKNOWN;
    return text.at[two[0]];
  }
  function put(element, value, unit) {
    if (value === undefined) { element.replaceChildren(make("span", "size", UNKNOWN)); return; }
    const size = make("span", "size", written(value, unit));
    if (value === null) { element.replaceChildren(size); return; }
    element.replaceChildren(size, " ", make("span", "exact", grouped(value) + (unit === "bytes" ? " B" : "")));
  }
  function verdict(element) {
    element.dataset.state = element.textContent.split(":")[0].replace("does not fit", "over");
  }
  function moveFigures(batch) {
    let missing = 0;
    for (const element of all("[data-figure]")) {
      const value = known(element.dataset.figure, batch);
      missing += value === undefined;
      put(element, value, element.dataset.as);
    }
    for (const element of all("[data-text]")) element.textContent = textAt(element.dataset.text, batch);
    for (const element of all("[data-verdict]")) verdict(element);
    for (const element of all("[data-ratio]")) {
      const one = known(element.dataset.ratio, batch), other = known(element.dataset.to, batch);
      element.textContent = one === undefined || other === undefined ? UNKNOWN
        : one === null || !other ? "unknown" : `${rounded(Number(one) / Number(other), 2)} x`;
    }
    for (const row of all("tr[data-term]")) row.hidden = textAt(row.dataset.term, batch) === "";
    for (const element of all("[data-rounded]")) {
      const value = known(element.dataset.rounded, batch);
      element.textContent = value === undefined ? UNKNOWN : bytesText(value);
    }
    document.title = document.querySelector("h1").textContent;
    for (const row of all("tr[data-drops]")) row.hidden = known(row.dataset.drops, batch) === 0n;
    for (const element of all("[data-batch-number]")) element.textContent = grouped(batch);
    return missing;
  }

  /* What is alive at a peak. */
  const PEAKS = { "live-run": "activations.in_place_peak_bytes", "live-train": "training.peak_bytes", "live-modules": "training.peak_bytes" };
  function barsAt(rows, peak, batch) {
    const at = stops.indexOf(batch);
    const sized = (each) => rows[each].map(([name, size]) => [name, { name, group: name < 0 ? -1 : data.live.names[name][1], size: BigInt(size) }]);
    if (at >= 0) return sized(at).map(([, bar]) => bar);
    const two = neighbors(batch);
    if (!two || !isLine(peak, two)) return null;
    const [low, high] = two.map((each) => new Map(sized(each)));
    if (low.size !== high.size || low.size !== rows[two[0]].length) return null;
    const span = BigInt(stops[two[1]] - stops[two[0]]), into = BigInt(batch - stops[two[0]]);
    const bars = [];
    for (const [key, one] of low) {
      if (!high.has(key)) return null;
      const rise = (high.get(key).size - one.size) * into;
      if (rise % span) return null;
      bars.push({ ...one, size: one.size + rise / span });
    }
    /* What is left has no group, and comes last. */
    return bars.sort((a, b) => (a.group < 0) - (b.group < 0) || (b.size > a.size ? 1 : b.size < a.size ? -1 : 0));
  }
  /* Those that hold 90 % of the bytes, and the others as one. */
  function largestBars(bars) {
    const least = bars.reduce((sum, each) => sum + each.size, 0n) * BigInt(data.live.percent);
    let sum = 0n, count = 0, more = 0, left = 0n;
    for (const each of bars) {
      if (each.name >= 0 && count < data.live.most && sum * 100n < least) { sum += each.size; count += 1; continue; }
      more += each.name < 0 ? -each.name : 1;
      left += each.size;
    }
    const named = bars.slice(0, count);
    return more ? [...named, { name: -more, group: -1, size: left }] : named;
  }
  const barName = (name) => (name < 0 ? `${grouped(-name)} more` : data.live.names[name][0]);
  function bar(start, size, total, css) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const share = (each) => `${(total ? (100 * Number(each)) / Number(total) : 0).toFixed(2)}%`;
    svg.setAttribute("class", "bar");
    svg.setAttribute("aria-hidden", "true");
    for (const [key, value] of [["class", css], ["x", share(start)], ["width", share(size)], ["height", 14]]) rect.setAttribute(key, value);
    svg.append(rect);
    return svg;
  }
  function moveBars(batch) {
    for (const [id, rows] of Object.entries(data.live.tables)) {
      const table = byId(id), found = barsAt(rows, PEAKS[id], batch), bars = found && largestBars(found);
      const total = bars && bars.reduce((sum, each) => sum + each.size, 0n);
      let start = 0n;
      const lines = (bars || []).map(({ name, group, size }) => {
        const row = make("tr"), head = make("th", "name", barName(name)), cell = make("td", "num"), share = make("td"), kind = make("td");
        const [groupName, css] = group < 0 ? ["", "c-rest"] : data.live.groups[group];
        head.scope = "row";
        if (group >= 0) kind.append(make("span", `swatch ${css}`), groupName);
        put(cell, size, "bytes");
        share.append(bar(start, size, total, css));
        start += size;
        row.append(head, kind, cell, share);
        if (chart) pickable(row, kindOf(id));
        return row;
      });
      table.tBodies[0].replaceChildren(...lines);
      put(table.tFoot.rows[0].cells[2], bars ? total : undefined, "bytes");
    }
  }

  /* The layers: each cell has what one more sample adds. */
  const layers = byId("onnxmem-layers");
  const cells = layers ? all("td[data-per]", layers).map((cell) => [cell, cell.dataset.value, cell.textContent]) : [];
  const shapes = layers ? all("td[data-dims]", layers).map((cell) => [cell, cell.textContent]) : [];
  for (const [cell, value] of layers ? all("td[data-value]", layers).map((each) => [each, each.dataset.value]) : []) {
    if (value !== undefined) cell.title = grouped(BigInt(value));
  }
  /* The first step of most live bytes, where they are known. */
  function markPeak() {
    const badge = layers.querySelector(".badge"), rows = all("#layers-table tbody tr").filter((row) => row.cells[0].dataset.nested === undefined);
    if (!badge) return;
    const live = (row) => (row.cells[3].dataset.value ? Number(row.cells[3].dataset.value) : -1), step = (row) => Number(row.cells[0].dataset.value);
    const peak = rows.reduce((best, row) => (live(row) > live(best) || (live(row) === live(best) && step(row) < step(best)) ? row : best));
    badge.hidden = live(peak) < 0;
    peak.cells[2].append(badge);
  }
  function moveLayers(batch) {
    if (!layers) return;
    const isRequested = batch === data.batch, more = BigInt(batch - data.batch);
    const inside = isRequested || (Number(layers.dataset.first) <= batch && batch <= Number(layers.dataset.last));
    for (const [cell, value, text] of cells) {
      const per = cell.dataset.per;
      if (isRequested) { cell.textContent = text; cell.dataset.value = value; cell.title = value === undefined ? "" : grouped(BigInt(value)); continue; }
      if (!inside || per === "?" || value === undefined) { cell.textContent = UNKNOWN; cell.title = ""; cell.dataset.value = ""; continue; }
      const moved = BigInt(value) + more * BigInt(per);
      cell.textContent = written(moved, text.endsWith("B") ? "bytes" : "count");
      cell.title = grouped(moved);
      cell.dataset.value = moved.toString();
    }
    for (const [cell, text] of shapes) {
      const dims = text.split("x"), slopes = cell.dataset.dims.split(",");
      cell.textContent = isRequested ? text : inside && !slopes.includes("?")
        ? dims.map((dim, axis) => (BigInt(dim) + more * BigInt(slopes[axis])).toString()).join("x") : UNKNOWN;
    }
    markPeak();
    all('[data-caption="sums"]').forEach((each) => { each.hidden = !isRequested; });
    resorts.get(byId("layers-table"))();
  }

  /* The packed block, at the nearest batch at which it was computed. */
  const packing = byId("onnxmem-packing-chart");
  const requestedPacking = document.createElement("template");
  if (packing) requestedPacking.content.append(...[...packing.childNodes].map((each) => each.cloneNode(true)));
  function movePacking(batch) {
    if (!packing || !packing.dataset.packing) return;
    const drawn = all("template[data-packing]").map((each) => [Number(each.dataset.packing), each]);
    drawn.push([Number(packing.dataset.packing), requestedPacking]);
    const [at, nearest] = drawn.reduce((best, each) => (Math.abs(each[0] - batch) < Math.abs(best[0] - batch) ? each : best));
    packing.replaceChildren(nearest.content.cloneNode(true));
    all("[data-packed-batch]").forEach((each) => { each.textContent = at === batch ? grouped(at) : `${grouped(at)}, the nearest to ${grouped(batch)} that is computed`; });
  }

  /* What is selected: a tensor or a node, by its name; the same in the chart, the bars, the layers
     and the packed block. Rows are found by the name that they show. */
  const nameOf = (row) => { const cell = row.querySelector(".name"); return cell ? cell.textContent : ""; };
  const barRows = () => all("table.bars tbody tr"), nodeRows = () => all("#layers-table tbody tr");
  const kindOf = (id) => (id === "live-modules" ? "module" : "tensor");
  /* The rule of modules.py: the names of modules that a tensor or a node is in, and its own. */
  function pathOf(name) {
    const kept = [];
    for (const part of name.replace(/^.* (?:of|beside) /, "").split("/").filter(Boolean)) {
      if (kept.length && part.startsWith(`${kept[kept.length - 1]}.`)) kept[kept.length - 1] = part; else kept.push(part);
    }
    return kept.join(".");
  }
  let select = () => {};
  function pickable(row, kind) {
    const cell = row.querySelector(".name");
    if (!cell || cell.querySelector("button")) return;
    const button = make("button", "pick", cell.textContent);
    button.type = "button";
    cell.replaceChildren(button);
    row.addEventListener("click", () => select({ kind, name: nameOf(row) }));
  }
  function markRows(rows, names) {
    let first = null;
    for (const row of rows) {
      const chosen = names.has(nameOf(row));
      row.classList.toggle("selected", chosen);
      if (chosen) row.setAttribute("aria-selected", "true"); else row.removeAttribute("aria-selected");
      if (chosen && !first && !row.hidden) first = row;
    }
    /* Within its own box: the page itself stays where it is. */
    const box = first && first.closest(".scroll");
    if (box && box.scrollHeight > box.clientHeight) box.scrollTop = first.offsetTop - box.clientHeight / 3;
  }

  /* The timeline: uPlot replaces the SVG once it has drawn. */
  let chart = null, remark = () => {};
  const course = data.timeline, holderElement = byId("onnxmem-timeline");
  const summed = (deltas) => { let sum = 0; return deltas.map((each) => (sum += each)); };
  function expanded(changes, length) {
    const deltas = new Array(length).fill(0);
    let index = 0;
    for (let n = 0; n < changes.length; n += 2) { index += changes[n]; deltas[index] = changes[n + 1]; }
    return summed(deltas);
  }
  function decoded(coded) {
    const names = [];
    for (let n = 0; n < coded.length; n += 2) names.push((n ? names[names.length - 1].slice(0, coded[n]) : "") + coded[n + 1]);
    return names;
  }
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function timeline() {
    const MOST_LIVE = 5, MOST_MATCHES = 8, FARTHEST_BUDGET = 2.5;
    const steps = summed(course.steps), readout = byId("onnxmem-readout"), legend = byId("onnxmem-legend");
    const nodes = decoded(course.nodes), names = decoded(course.tensors.names), starts = summed(course.tensors.starts);
    const tensors = names.map((name, n) => ({
      name, group: course.tensors.groups[n], fixed: course.tensors.fixed[n], per: course.tensors.per[n],
      start: starts[n], stop: starts[n] + course.tensors.lengths[n],
    }));
    const areas = course.series.map((each) => ({ name: each.name, css: each.css, shown: true, fixed: expanded(each.fixed, steps.length), per: expanded(each.per, steps.length) }));
    const numSteps = steps[steps.length - 1] + 1, xs = [...steps.map((step) => step + 1), numSteps + 1];
    let batch = course.batch, values = [], stacked = [], peak = 0, plot = null, at = 0, spans = [], chosen = null, pinned = null;
    const moves = (requested) => requested === course.batch || Boolean(course.moves && course.moves[0] <= requested && requested <= course.moves[1]);
    const moved = (tensor) => tensor.fixed + batch * tensor.per;
    const allShown = () => areas.every((area) => area.shown);
    const total = (n) => (stacked.length ? stacked[stacked.length - 1][n] : 0);
    function compute(requested) {
      batch = moves(requested) ? requested : course.batch;
      values = areas.map((area) => area.fixed.map((size, n) => size + batch * area.per[n]));
      let below = steps.map(() => 0);
      stacked = values.filter((row, n) => areas[n].shown).map((row) => (below = row.map((size, n) => size + below[n])));
      peak = steps.reduce((best, step, n) => (total(n) > total(best) ? n : best), 0);
    }
    const rows = () => [xs, ...stacked.map((row) => [...row, row[row.length - 1]]).reverse()];
    const budgetShown = () => course.budget !== null && allShown();
    const isFar = () => course.budget > FARTHEST_BUDGET * total(peak);
    const top = (high) => Math.max((budgetShown() && !isFar() ? Math.max(high, course.budget) : high) * 1.08, 1);
    function haloed(ctx, text, x, y) {
      ctx.lineWidth = 4 * devicePixelRatio;
      ctx.strokeStyle = color("--paper");
      ctx.lineJoin = "round";
      ctx.setLineDash([]);
      ctx.strokeText(text, x, y);
      ctx.fillText(text, x, y);
    }
    function budgetLine(u, ratio) {
      const { ctx, bbox } = u, right = bbox.left + bbox.width - 4 * ratio;
      const y = isFar() ? bbox.top : u.valToPos(course.budget, "y", true);
      ctx.fillStyle = ctx.strokeStyle = color("--bad");
      ctx.textAlign = "right";
      const text = `budget ${bytesText(BigInt(course.budget))}${isFar() ? ", above this chart" : ""}`;
      if (!isFar()) {
        ctx.lineWidth = 1.5 * ratio;
        ctx.setLineDash([6 * ratio, 4 * ratio]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
      }
      haloed(ctx, text, right, y + 14 * ratio);
      ctx.textAlign = "left";
      return { left: right - ctx.measureText(text).width, baseline: y + 14 * ratio };
    }
    function phases(u, ratio) {
      const { ctx, bbox } = u;
      let free = -Infinity;
      ctx.fillStyle = ctx.strokeStyle = color("--ink");
      for (const [step, name] of course.marks) {
        const x = u.valToPos(step + 1, "x", true);
        ctx.globalAlpha = 0.7;
        ctx.lineWidth = ratio;
        ctx.setLineDash([3 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top - 4 * ratio);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.globalAlpha = 1;
        if (x >= free) { ctx.fillText(name, x + 4 * ratio, bbox.top - 8 * ratio); free = x + ctx.measureText(name).width + 12 * ratio; }
      }
    }
    function selection(u, ratio) {
      const { ctx, bbox } = u;
      ctx.setLineDash([]);
      ctx.lineWidth = 2 * ratio;
      ctx.strokeStyle = color("--accent");
      ctx.fillStyle = color("--accent");
      for (const [start, stop] of spans) {
        const left = u.valToPos(start + 1, "x", true), right = u.valToPos(stop + 1, "x", true);
        ctx.globalAlpha = 0.18;
        ctx.fillRect(left, bbox.top, Math.max(right - left, 2 * ratio), bbox.height);
        ctx.globalAlpha = 1;
        ctx.fillRect(left, bbox.top + bbox.height - 3 * ratio, Math.max(right - left, 2 * ratio), 3 * ratio);
      }
    }
    /* Below the budget's words where both are at the top on the right. */
    function peakLabel(u, ratio, taken) {
      const { ctx, bbox } = u;
      const x = u.valToPos(steps[peak] + 1, "x", true), y = u.valToPos(total(peak), "y", true);
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.arc(x, y, 4 * ratio, 0, 2 * Math.PI);
      ctx.fillStyle = color("--paper");
      ctx.strokeStyle = color("--ink");
      ctx.fill();
      ctx.lineWidth = 2 * ratio;
      ctx.stroke();
      ctx.fillStyle = color("--ink");
      const text = `${allShown() ? "peak" : "most of these"} ${bytesText(BigInt(total(peak)))}`, width = ctx.measureText(text).width;
      const isRight = x + width + 12 * ratio < bbox.left + bbox.width;
      const left = isRight ? x + 9 * ratio : x - width - 9 * ratio;
      let baseline = Math.max(y - 4 * ratio, bbox.top + 10 * ratio);
      if (taken && left + width > taken.left && Math.abs(baseline - taken.baseline) < 14 * ratio) baseline = taken.baseline + 14 * ratio;
      haloed(ctx, text, left, baseline);
    }
    function marks(u) {
      const { ctx, bbox } = u, ratio = devicePixelRatio;
      ctx.save();
      ctx.font = `${12 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top - 24 * ratio, bbox.width, bbox.height + 24 * ratio);
      ctx.clip();
      selection(u, ratio);
      phases(u, ratio);
      const taken = budgetShown() ? budgetLine(u, ratio) : null;
      if (stacked.length) peakLabel(u, ratio, taken);
      ctx.restore();
    }
    /* The largest that are alive: a tensor's own row, which selects it. */
    function tensorItem(tensor) {
      const item = make("li"), button = make("button", "pick name", tensor.name);
      button.type = "button";
      button.addEventListener("click", () => select({ kind: "tensor", name: tensor.name }));
      item.append(make("span", `swatch ${areas[tensor.group].css}`), make("b", "", bytesText(BigInt(moved(tensor)))), " ", button);
      return item;
    }
    function showStep(n) {
      at = n;
      const head = make("p", "readout-head"), node = nodes[course.node[n]], step = steps[n];
      head.append(make("b", "", bytesText(BigInt(total(n)))), ` at step ${grouped(step + 1)} of ${grouped(numSteps)}`, n === peak ? ", the peak" : "", allShown() ? "" : ", of the categories shown", node ? ": " : "", make("span", "name", node));
      values.forEach((row, area) => { areas[area].value.textContent = bytesText(BigInt(row[n])); });
      const live = tensors.filter((tensor) => areas[tensor.group].shown && tensor.start <= step && step < tensor.stop);
      live.sort((one, other) => moved(other) - moved(one) || one.start - other.start);
      const list = make("ol", "largest");
      list.append(...live.slice(0, MOST_LIVE).map(tensorItem));
      const parts = [head, make("p", "soft", "largest tensors alive then"), list];
      if (chosen) parts.unshift(chosenText());
      readout.replaceChildren(...parts);
    }
    function chosenText() {
      const text = make("p", "chosen"), clear = make("button", "", "clear");
      clear.type = "button";
      clear.addEventListener("click", () => select(null));
      text.append(`selected ${chosen.kind} `, make("span", "name", chosen.name));
      if (chosen.kind === "tensor" && chosen.tensor) {
        const tensor = chosen.tensor;
        text.append(`: ${bytesText(BigInt(moved(tensor)))}, ${areas[tensor.group].name}, alive from step ${grouped(tensor.start + 1)} to ${grouped(tensor.stop)}, made by `, make("span", "name", chosen.node || "no node"));
      } else if (spans.length) text.append(`: ${spans.length === 1 ? "one part" : `${grouped(spans.length)} parts`} of the timeline`);
      text.append(" ", clear);
      return text;
    }
    const indexOf = (step) => { let low = 0, high = steps.length - 1; while (low < high) { const middle = (low + high + 1) >> 1; if (steps[middle] <= step) low = middle; else high = middle - 1; } return low; };
    /* Consecutive steps of a node are one part: a training step has one forward and one backward. */
    function spansOf(isIn) {
      const found = [];
      course.node.forEach((index, n) => {
        if (!isIn(nodes[index])) return;
        const last = found[found.length - 1], end = n + 1 < steps.length ? steps[n + 1] : numSteps;
        if (last && last[1] === steps[n]) last[1] = end; else found.push([steps[n], end]);
      });
      return found;
    }
    const madeBy = (tensor) => nodes[course.node[indexOf(tensor.start)]];
    select = (what) => {
      chosen = what && { ...what };
      spans = [];
      pinned = null;
      const rowsOf = { tensor: new Set(), node: new Set() };
      if (chosen && chosen.kind === "tensor") {
        chosen.tensor = tensors.find((tensor) => tensor.name === chosen.name);
        rowsOf.tensor.add(chosen.name);
        if (chosen.tensor) {
          chosen.node = madeBy(chosen.tensor);
          spans = [[chosen.tensor.start, chosen.tensor.stop]];
          pinned = indexOf(chosen.tensor.start);
          if (chosen.node) rowsOf.node.add(chosen.node);
        }
      } else if (chosen && chosen.kind === "module") {
        const isIn = (name) => pathOf(name).startsWith(`${chosen.name}.`);
        rowsOf.tensor = { has: (name) => name === chosen.name || isIn(name) };
        rowsOf.node = { has: isIn };
        spans = spansOf(isIn);
        pinned = spans.length ? indexOf(spans[0][0]) : null;
      } else if (chosen) {
        rowsOf.node.add(chosen.name);
        spans = spansOf((name) => name === chosen.name);
        pinned = chosen.step ?? (spans.length ? indexOf(spans[0][0]) : null);
        for (const tensor of tensors) if (madeBy(tensor) === chosen.name) rowsOf.tensor.add(tensor.name);
      }
      remark = () => {
        markRows(barRows(), rowsOf.tensor);
        markRows(nodeRows(), rowsOf.node);
        for (const rect of all("#onnxmem-packing-chart rect")) {
          const text = rect.textContent, colon = text.lastIndexOf(": ");
          rect.classList.toggle("selected", colon > 0 && rowsOf.tensor.has(text.slice(0, colon)));
        }
      };
      remark();
      showStep(pinned ?? peak);
      plot.redraw();
    };
    function makeLegend() {
      for (const area of areas) {
        const button = make("button"), value = make("b");
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        button.title = `show or hide ${area.name}`;
        button.append(make("span", `swatch ${area.css}`), `${area.name} `, value);
        area.value = value;
        button.addEventListener("click", () => {
          area.shown = !area.shown;
          button.setAttribute("aria-pressed", String(area.shown));
          compute(batch);
          draw();
          showStep(pinned ?? peak);
        });
        legend.append(button);
      }
    }
    function makeSearch() {
      const input = byId("onnxmem-search"), matches = byId("onnxmem-matches");
      const nodeNames = [...new Set(nodes)].filter(Boolean);
      function found() {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        if (!words.length) return [];
        const has = (name) => words.every((word) => name.toLowerCase().includes(word));
        const ofTensors = tensors.filter((tensor) => has(tensor.name)).sort((one, other) => moved(other) - moved(one)).map((tensor) => ({ kind: "tensor", name: tensor.name, note: bytesText(BigInt(moved(tensor))) }));
        const ofNodes = nodeNames.filter(has).map((name) => ({ kind: "node", name, note: "" }));
        const half = MOST_MATCHES / 2, numTensors = Math.max(half, MOST_MATCHES - ofNodes.length);
        const shown = [...ofTensors.slice(0, numTensors), ...ofNodes.slice(0, MOST_MATCHES - Math.min(numTensors, ofTensors.length))];
        return { shown, left: ofTensors.length + ofNodes.length - shown.length };
      }
      function show() {
        const { shown = [], left = 0 } = found(), items = shown.map((match) => {
          const item = make("li"), button = make("button", "pick");
          button.type = "button";
          button.append(`${match.kind} `, make("span", "name", match.name), match.note ? ` ${match.note}` : "");
          button.addEventListener("click", () => select(match));
          item.append(button);
          return item;
        });
        if (left) items.push(make("li", "soft", `${grouped(left)} more`));
        if (input.value.trim() && !shown.length) items.push(make("li", "soft", "no tensor or node of that name in this chart"));
        matches.replaceChildren(...items);
      }
      input.addEventListener("input", show);
      input.addEventListener("keydown", (event) => {
        const { shown = [] } = found();
        if (event.key === "Enter" && shown.length) { event.preventDefault(); select(shown[0]); }
      });
    }
    function draw() {
      const width = Math.max(holderElement.clientWidth, 260), line = color("--line"), ink = color("--soft");
      const font = "12px system-ui, sans-serif";
      const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font, labelFont: font };
      const options = {
        width, height: width < 500 ? 260 : 340, padding: [24, 26, 0, 0], legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { range: (u, low, high) => [0, top(high)] } },
        axes: [
          { ...axis, label: "step", labelSize: 18, size: 32, space: 70, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6], values: (u, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? grouped(tick) : "")) },
          { ...axis, label: "live bytes", labelSize: 18, size: 68, space: 40, incrs: Array.from({ length: 60 }, (_, power) => 2 ** power), values: (u, ticks) => ticks.map((tick) => bytesText(BigInt(Math.round(tick))).replace(/\.0+ /, " ")) },
        ],
        series: [{}, ...areas.filter((area) => area.shown).reverse().map((area) => ({ label: area.name, width: 0, fill: color(`--${area.css.slice(2)}`) || "#999", points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }))],
        hooks: {
          draw: [marks],
          setCursor: [(u) => {
            const { idx, left } = u.cursor;
            if (left < 0) showStep(pinned ?? peak);
            else if (idx !== null && idx !== undefined) showStep(Math.min(idx, steps.length - 1));
          }],
        },
      };
      const holder = make("div", "plot"), old = holderElement.querySelector(".plot"), next = new uPlot(options, rows(), holder);
      if (plot) plot.destroy();
      if (old) old.remove();
      plot = next;
      let down = 0;
      plot.over.addEventListener("mousedown", (event) => { down = event.clientX; });
      plot.over.addEventListener("click", (event) => { if (Math.abs(event.clientX - down) < 4) choose(at); });
      holderElement.append(holder);
      const svg = holderElement.querySelector("svg.chart");
      if (svg) svg.classList.add("replaced");
      readout.hidden = byId("onnxmem-timeline-tools").hidden = false;
      all("#timeline .hint").forEach((each) => { each.hidden = false; });
    }
    const choose = (n) => {
      const node = nodes[course.node[n]];
      if (node) select({ kind: "node", name: node, step: n });
    };
    makeLegend();
    makeSearch();
    compute(course.batch);
    draw();
    showStep(peak);
    themed.push(draw);
    let seen = holderElement.clientWidth;
    new ResizeObserver(() => { if (holderElement.clientWidth !== seen) { seen = holderElement.clientWidth; draw(); } }).observe(holderElement);
    const near = (n) => {
      const to = Math.max(0, Math.min(steps.length - 1, n));
      plot.setCursor({ left: plot.valToPos(xs[to], "x"), top: 10 });
      showStep(to);
    };
    const seeAll = () => { plot.setData(rows(), true); if (chosen) select(null); };
    const keys = { ArrowLeft: () => near(at - 1), ArrowRight: () => near(at + 1), PageUp: () => near(at - 20), PageDown: () => near(at + 20), Home: () => near(0), End: () => near(steps.length - 1), Enter: () => choose(at), Escape: seeAll };
    holderElement.addEventListener("keydown", (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });
    nodeRows().forEach((row) => pickable(row, "node"));
    barRows().forEach((row) => pickable(row, kindOf(row.closest("table").id)));
    const packed = byId("onnxmem-packing-chart");
    if (packed) packed.addEventListener("click", (event) => {
      const rect = event.target.closest("rect"), text = rect ? rect.textContent : "", colon = text.lastIndexOf(": ");
      if (colon > 0) select({ kind: "tensor", name: text.slice(0, colon) });
    });
    return (requested) => {
      compute(requested);
      plot.setData(rows(), true);
      if (chosen) remark();
      showStep(pinned ?? peak);
      all('[data-caption="peak"]').forEach((each) => { each.textContent = bytesText(BigInt(total(peak))); });
      all('[data-caption="batch"]').forEach((each) => { each.textContent = ` at batch ${grouped(batch)}${batch === requested ? "" : ", at which it is drawn"}`; });
    };
  }
  if (course && holderElement && typeof uPlot === "function") chart = timeline();

  if (data.batch === null) return;
  const form = byId("onnxmem-batch"), range = byId("onnxmem-batch-range"), number = byId("onnxmem-batch-number"), note = byId("onnxmem-batch-note");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  let shownBatch = data.batch;
  function choose(batch) {
    shownBatch = batch;
    number.removeAttribute("aria-invalid");
    range.value = number.value = batch;
    const missing = moveFigures(batch);
    moveBars(batch);
    moveLayers(batch);
    movePacking(batch);
    if (chart) chart(batch);
    all("button[data-batch]", form).forEach((each) => each.setAttribute("aria-pressed", String(Number(each.dataset.batch) === batch)));
    const two = neighbors(batch);
    const where = two ? `between ${grouped(stops[two[0]])} and ${grouped(stops[two[1]])}` : "at this batch";
    note.textContent = missing ? `${UNKNOWN}: not proven ${where}; every figure is known at the batches above` : "";
  }
  let waiting = 0;
  const soon = (batch) => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => choose(batch)); };
  range.addEventListener("input", () => soon(Number(range.value)));
  /* Until the number is a batch that the page can show, every figure stays as it is. */
  function typed() {
    const batch = Number(number.value), isBatch = number.value !== "" && Number.isInteger(batch) && batch >= 1 && batch <= data.last;
    if (isBatch) { choose(batch); return; }
    number.setAttribute("aria-invalid", "true");
    const what = number.value === "" ? "this" : number.value;
    note.textContent = `${what} is not a batch: a whole number from 1 to ${grouped(data.last)}. The page still shows batch ${grouped(shownBatch)}.`;
  }
  number.addEventListener("change", typed);
  all("button[data-batch]", form).forEach((each) => each.addEventListener("click", () => choose(Number(each.dataset.batch))));
  choose(data.batch);
})();
