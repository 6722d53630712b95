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
    resorts.set(table, sort);
  }
  all("table.sortable").forEach(sortable);
  all("input[data-filters]").forEach((input) => {
    const table = byId(input.dataset.filters), box = input.closest(".filter"), told = box.querySelector("output");
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
      told.textContent = words.length ? `${grouped(shown)} of ${grouped(rows.length)} rows` : "";
    });
  });

  const held = byId("onnxmem-data");
  if (!held) return;
  const data = JSON.parse(held.textContent);
  if (!data || !data.figures) return;

  /* The batch. A figure is shown where it was worked out, or where a law is proven. */
  const stops = data.stops || [];
  const big = (value) => (value === null || value === undefined ? null : BigInt(value));
  function known(key, batch) {
    const moves = data.figures[key], at = stops.indexOf(batch);
    if (!moves) return undefined;
    if (at >= 0) return big(moves.at[at]);
    const law = moves.laws.find(([first, last]) => first <= batch && batch <= last);
    return law ? BigInt(law[2]) + BigInt(law[3]) * BigInt(batch) : derived(key, batch);
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
    return Boolean(moves && moves.laws.some(([first, last]) => first <= stops[two[0]] && stops[two[1]] <= last));
  };
  const neighbours = (batch) => {
    const after = stops.findIndex((stop) => stop > batch);
    return after > 0 ? [after - 1, after] : null;
  };
  function textAt(key, batch) {
    const text = data.texts[key], at = stops.indexOf(batch);
    if (at >= 0) return text.at[at];
    const told = (text.told || []).find(([first, last]) => first <= batch && batch <= last);
    if (told) return told[2];
    const two = neighbours(batch);
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
    for (const row of all("tr[data-drops]")) row.hidden = known(row.dataset.drops, batch) === 0n;
    for (const element of all("[data-batch-number]")) element.textContent = grouped(batch);
    return missing;
  }

  /* What is alive at a peak. */
  const PEAKS = { "live-run": "activations.in_place_peak_bytes", "live-train": "training.peak_bytes" };
  function barsAt(rows, peak, batch) {
    const at = stops.indexOf(batch);
    if (at >= 0) return rows[at].map(([name, size]) => [name, BigInt(size)]);
    const two = neighbours(batch);
    if (!two || !isLine(peak, two)) return null;
    const [low, high] = two.map((each) => new Map(rows[each]));
    if (low.size !== high.size || low.size !== rows[two[0]].length) return null;
    const span = BigInt(stops[two[1]] - stops[two[0]]), into = BigInt(batch - stops[two[0]]);
    const bars = [];
    for (const [name, size] of low) {
      if (!high.has(name)) return null;
      const rise = (BigInt(high.get(name)) - BigInt(size)) * into;
      if (rise % span) return null;
      bars.push([name, BigInt(size) + rise / span]);
    }
    const rest = / more$/;
    return bars.sort((a, b) => rest.test(data.live.names[a[0]]) - rest.test(data.live.names[b[0]]) || (b[1] > a[1] ? 1 : b[1] < a[1] ? -1 : 0));
  }
  function bar(start, size, total) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const share = (each) => (total ? (1000 * Number(each)) / Number(total) : 0).toFixed(1);
    for (const [key, value] of [["class", "bar"], ["viewBox", "0 0 1000 10"], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) svg.setAttribute(key, value);
    for (const [key, value] of [["class", "c-activations"], ["x", share(start)], ["width", Math.max(share(size), 1)], ["height", 10]]) rect.setAttribute(key, value);
    svg.append(rect);
    return svg;
  }
  function moveBars(batch) {
    for (const [id, rows] of Object.entries(data.live.tables)) {
      const table = byId(id), bars = barsAt(rows, PEAKS[id], batch);
      const total = bars && bars.reduce((sum, [, size]) => sum + size, 0n);
      let start = 0n;
      const lines = (bars || []).map(([name, size]) => {
        const row = make("tr"), head = make("th", "name", data.live.names[name]), cell = make("td", "num"), share = make("td");
        head.scope = "row";
        put(cell, size, "bytes");
        share.append(bar(start, size, total));
        start += size;
        row.append(head, cell, share);
        return row;
      });
      table.tBodies[0].replaceChildren(...lines);
      put(table.tFoot.rows[0].cells[1], bars ? total : undefined, "bytes");
    }
  }

  /* The layers: each cell has what one more sample adds. */
  const layers = byId("onnxmem-layers");
  const cells = layers ? all("td[data-per]", layers).map((cell) => [cell, cell.dataset.value, cell.textContent]) : [];
  const shapes = layers ? all("td[data-dims]", layers).map((cell) => [cell, cell.textContent]) : [];
  function moveLayers(batch) {
    if (!layers) return;
    const asked = batch === data.batch, more = BigInt(batch - data.batch);
    const inside = asked || (Number(layers.dataset.first) <= batch && batch <= Number(layers.dataset.last));
    for (const [cell, value, text] of cells) {
      const per = cell.dataset.per;
      if (asked) { cell.textContent = text; cell.dataset.value = value; cell.title = value === undefined ? "" : grouped(BigInt(value)); continue; }
      if (!inside || per === "?" || value === undefined) { cell.textContent = UNKNOWN; cell.title = ""; cell.dataset.value = ""; continue; }
      const moved = BigInt(value) + more * BigInt(per);
      cell.textContent = written(moved, cell.dataset.as);
      cell.title = grouped(moved);
      cell.dataset.value = moved.toString();
    }
    for (const [cell, text] of shapes) {
      const dims = text.split("x"), slopes = cell.dataset.dims.split(",");
      cell.textContent = asked ? text : inside && !slopes.includes("?")
        ? dims.map((dim, place) => (BigInt(dim) + more * BigInt(slopes[place])).toString()).join("x") : UNKNOWN;
    }
    all('[data-caption="sums"]').forEach((each) => { each.hidden = !asked; });
    resorts.get(byId("layers-table"))();
  }

  /* The timeline: uPlot takes the SVG's place once it has drawn. */
  let chart = null;
  const course = data.timeline, place = byId("onnxmem-timeline");
  const summed = (deltas) => { let sum = 0; return deltas.map((each) => (sum += each)); };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function timeline() {
    const steps = summed(course.steps), readout = byId("onnxmem-readout");
    const areas = course.series.map((each) => ({ name: each.name, css: each.css, at: summed(each.at), per: each.per ? summed(each.per) : null }));
    const numSteps = steps[steps.length - 1] + 1, xs = [...steps.map((step) => step + 1), numSteps + 1];
    let batch = course.batch, values = [], stacked = [], peak = 0, plot = null, at = 0;
    const moves = (asked) => asked === course.batch || Boolean(course.moves && course.moves[0] <= asked && asked <= course.moves[1]);
    function reckon(asked) {
      batch = moves(asked) ? asked : course.batch;
      values = areas.map((area) => area.at.map((size, n) => (area.per ? size + (batch - course.batch) * area.per[n] : size)));
      let below = steps.map(() => 0);
      stacked = values.map((row) => (below = row.map((size, n) => size + below[n])));
      const top = stacked[stacked.length - 1];
      peak = top.reduce((best, size, n) => (size > top[best] ? n : best), 0);
    }
    const rows = () => [xs, ...stacked.map((row) => [...row, row[row.length - 1]]).reverse()];
    function marks(u) {
      const { ctx, bbox } = u, ratio = devicePixelRatio;
      ctx.save();
      ctx.font = `${12 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      ctx.fillStyle = ctx.strokeStyle = colour("--ink");
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top - 24 * ratio, bbox.width, bbox.height + 24 * ratio);
      ctx.clip();
      let free = -Infinity;
      for (const [step, name] of course.marks) {
        const x = u.valToPos(step + 1, "x", true);
        ctx.globalAlpha = 0.7;
        ctx.setLineDash([3 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top - 4 * ratio);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.globalAlpha = 1;
        if (x >= free) { ctx.fillText(name, x + 4 * ratio, bbox.top - 8 * ratio); free = x + ctx.measureText(name).width + 12 * ratio; }
      }
      const x = u.valToPos(steps[peak] + 1, "x", true), y = u.valToPos(stacked[stacked.length - 1][peak], "y", true);
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.arc(x, y, 4 * ratio, 0, 2 * Math.PI);
      ctx.fillStyle = colour("--paper");
      ctx.fill();
      ctx.lineWidth = 2 * ratio;
      ctx.stroke();
      ctx.restore();
    }
    function tell(n) {
      at = n;
      const total = stacked[stacked.length - 1][n], head = make("p", "readout-head");
      const node = course.nodes[course.node[n]];
      head.append(make("b", "", bytesText(BigInt(total))), ` at step ${grouped(steps[n] + 1)} of ${grouped(numSteps)}`, n === peak ? ", the peak" : "", node ? ": " : "", make("span", "name", node));
      const layersList = make("ul", "legend");
      values.forEach((row, area) => {
        const item = make("li");
        item.append(make("span", `swatch ${areas[area].css}`), `${areas[area].name} `, make("b", "", bytesText(BigInt(row[n]))));
        layersList.append(item);
      });
      const list = make("ol", "largest");
      for (const number of course.live[n]) {
        const [name, size, per] = course.tensors[number], item = make("li");
        const moved = BigInt(size) + BigInt(batch - course.batch) * BigInt(per);
        item.append(make("b", "", bytesText(moved)), " ", make("span", "name", name));
        list.append(item);
      }
      readout.replaceChildren(head, layersList, make("p", "soft", "largest alive then"), list);
    }
    function draw() {
      const width = Math.max(place.clientWidth, 260), line = colour("--line"), ink = colour("--soft");
      const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
      const options = {
        width, height: width < 500 ? 260 : 340, padding: [24, 26, 0, 0], legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { range: (u, low, high) => [0, Math.max(high * 1.06, 1)] } },
        axes: [
          { ...axis, label: "step", labelSize: 18, labelFont: "12px system-ui, sans-serif", size: 32, space: 70, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6], values: (u, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? grouped(tick) : "")) },
          { ...axis, size: 72, space: 40, incrs: Array.from({ length: 60 }, (_, power) => 2 ** power), values: (u, ticks) => ticks.map((tick) => bytesText(BigInt(Math.round(tick))).replace(/\.0+ /, " ")) },
        ],
        series: [{}, ...[...areas].reverse().map((area) => ({ label: area.name, width: 0, fill: colour(`--${area.css.slice(2)}`) || "#999", points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) }))],
        hooks: {
          draw: [marks],
          setCursor: [(u) => { if (u.cursor.idx !== null && u.cursor.idx !== undefined) tell(Math.min(u.cursor.idx, steps.length - 1)); }],
        },
      };
      const holder = make("div", "plot"), old = place.querySelector(".plot"), next = new uPlot(options, rows(), holder);
      if (plot) plot.destroy();
      if (old) old.remove();
      plot = next;
      place.append(holder);
      const svg = place.querySelector("svg.chart");
      if (svg) svg.classList.add("replaced");
      readout.hidden = byId("onnxmem-timeline-hint").hidden = false;
    }
    reckon(course.batch);
    draw();
    tell(peak);
    themed.push(draw);
    let seen = place.clientWidth;
    new ResizeObserver(() => { if (place.clientWidth !== seen) { seen = place.clientWidth; draw(); } }).observe(place);
    const near = (n) => {
      const to = Math.max(0, Math.min(steps.length - 1, n));
      plot.setCursor({ left: plot.valToPos(xs[to], "x"), top: 10 });
      tell(to);
    };
    const keys = { ArrowLeft: () => near(at - 1), ArrowRight: () => near(at + 1), PageUp: () => near(at - 20), PageDown: () => near(at + 20), Home: () => near(0), End: () => near(steps.length - 1), Escape: () => plot.setData(rows(), true) };
    place.addEventListener("keydown", (event) => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });
    return (asked) => {
      reckon(asked);
      plot.setData(rows(), true);
      tell(peak);
      all('[data-caption="peak"]').forEach((each) => { each.textContent = bytesText(BigInt(stacked[stacked.length - 1][peak])); });
      all('[data-caption="batch"]').forEach((each) => { each.textContent = ` at batch ${grouped(batch)}${batch === asked ? "" : ", at which it is drawn"}`; });
    };
  }
  if (course && place && typeof uPlot === "function") chart = timeline();

  if (data.batch === null) return;
  const form = byId("onnxmem-batch"), range = byId("onnxmem-batch-range"), number = byId("onnxmem-batch-number"), note = byId("onnxmem-batch-note");
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  function choose(batch) {
    range.value = number.value = batch;
    const missing = moveFigures(batch);
    moveBars(batch);
    moveLayers(batch);
    if (chart) chart(batch);
    all("button[data-batch]", form).forEach((each) => each.setAttribute("aria-pressed", String(Number(each.dataset.batch) === batch)));
    const two = neighbours(batch);
    const where = two ? `between ${grouped(stops[two[0]])} and ${grouped(stops[two[1]])}` : "at this batch";
    note.textContent = missing ? `${UNKNOWN}: not proven ${where}; every figure is known at the batches above` : "";
  }
  const asked = (text) => Math.min(Math.max(Math.round(Number(text)) || 1, 1), data.last);
  let waiting = 0;
  const soon = (batch) => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => choose(batch)); };
  range.addEventListener("input", () => soon(asked(range.value)));
  number.addEventListener("change", () => choose(asked(number.value)));
  all("button[data-batch]", form).forEach((each) => each.addEventListener("click", () => choose(Number(each.dataset.batch))));
  choose(data.batch);
})();
