// Form, files and answer of the page; the work is done in worker.js.

const of = (id) => document.getElementById(id);
const base = new URL(".", location.href).href;
let worker;
let isReady = false;
let isBusy = false;
let files = [];
let saved = null;

function show(text) { of("progress").textContent = text; }

function refuse(text) {
  of("fault").textContent = text;
  of("fault").hidden = text === "";
}

function words() {
  const found = [];
  if (document.forms.form.elements.mode.value === "train") found.push("--train");
  if (of("batch").value) found.push("--batch", of("batch").value);
  if (of("budget").value.trim()) found.push("--budget", of("budget").value.trim());
  if (of("precision").value && found.includes("--train")) found.push("--precision", of("precision").value);
  return found;
}

// A word of the shown command, as a shell reads it: a name may have quotes and blanks.
function quoted(word) { return /^[\w.,:=/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`; }

function update() {
  const names = files.length ? files.map((file) => file.name) : ["model.onnx"];
  const command = ["onnxmem", ...[...names, ...words()].map(quoted), of("more").value.trim()];
  of("command").textContent = command.join(" ").trim();
  of("go").disabled = !files.length || !isReady || isBusy;
}

function compute() {
  if (!files.length || !isReady || isBusy) return;
  isBusy = true;
  refuse("");
  show(`Computing ${files.map((file) => file.name).join(", ")} ...`);
  update();
  const columns = Math.max(40, Math.min(100, Math.floor(of("form").clientWidth / 8.6)));
  worker.postMessage({ kind: "run", files, words: words(), more: of("more").value, columns });
}

function draw(page) {
  of("view").replaceChildren();
  if (saved) URL.revokeObjectURL(saved);
  of("save").parentElement.hidden = page === null;
  if (page === null) return;
  saved = URL.createObjectURL(new Blob([page], { type: "text/html" }));
  of("save").href = saved;
  of("save").download = `${files[0].name}.html`;
  const frame = document.createElement("iframe");
  frame.title = "The page of the model";
  // A page of an origin of its own: a hostile model's names reach neither this page nor its files.
  frame.setAttribute("sandbox", "allow-scripts");
  frame.addEventListener("load", () => frame.contentWindow.postMessage(page, "*"), { once: true });
  frame.src = "view.html";
  of("view").append(frame);
}

function receive({ data }) {
  if (data.kind === "progress") { show(data.text); return; }
  isBusy = false;
  if (data.kind === "ready") {
    isReady = true;
    show("Ready.");
    update();
    compute();
    return;
  }
  show("");
  if (data.kind === "fault") {
    refuse(data.isLoading ? `Python could not be loaded: ${data.text}` : data.text);
  } else {
    refuse(data.err.replace(/^Wrote .*$/gm, "").trim());
    of("answer").hidden = data.out === "";
    of("text").textContent = data.out;
    draw(data.page);
  }
  update();
}

function take(list) {
  files = [...list];
  update();
  compute();
}

async function start() {
  const drop = of("drop");
  for (const name of ["dragenter", "dragover"]) {
    addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  for (const name of ["dragleave", "drop"]) {
    addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
  }
  addEventListener("drop", (event) => { if (event.dataTransfer.files.length) take(event.dataTransfer.files); });
  of("files").addEventListener("change", () => { if (of("files").files.length) take(of("files").files); });
  of("form").addEventListener("input", update);
  of("form").addEventListener("submit", (event) => { event.preventDefault(); compute(); });
  update();
  try {
    const source = await (await fetch("worker.js")).blob();
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    worker = new Worker(url, { type: "module" });
  } catch {
    refuse("The page must come from a web server: python -m http.server, in its folder.");
    return;
  }
  worker.addEventListener("message", receive);
  worker.addEventListener("error", (event) => receive({ data: { kind: "fault", text: event.message, isLoading: true } }));
  worker.postMessage({ kind: "load", base });
}

start();
