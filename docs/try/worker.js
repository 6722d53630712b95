// Python and onnxmem, beside the page's own thread. It is started from a blob, which puts it under
// the page's Content-Security-Policy: a worker that is loaded from a URL has only that of its response.

const HOLDER = "/models";
const RESULT = "/page.html";
// The command itself: the page has no rule of its own.
const RUN = `
import contextlib, importlib, io, os, shlex, sys

sys.path.remove("")  # no module is imported from among the user's files
importlib.invalidate_caches()  # the packages were unpacked just now
from onnxmem.cli import main

def run(names, words, more, columns):
    os.environ["COLUMNS"] = str(columns)
    with contextlib.suppress(FileNotFoundError):
        os.unlink("${RESULT}")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            words = [*names, *words, *shlex.split(more), "--html", "${RESULT}"]
            code = main(words)
        except ValueError as fault:
            code = 2
            print(f"error: More options: {fault}", file=err)
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), err.getvalue()
`;

let python;
let run;

async function read(url) {
  const response = await fetch(url);
  if (response.ok) return response;
  throw new Error(`${url}: the server answered ${response.status}; tools/try_page.py gathers what is loaded`);
}

async function load(base) {
  const say = (text) => postMessage({ kind: "progress", text });
  say("Loading Python ...");
  const folder = new URL("packages/", base).href;
  const { packages } = await (await read(`${folder}packages.json`)).json();
  const { loadPyodide } = await import(`${folder}pyodide.mjs`);
  python = await loadPyodide({ indexURL: folder });
  const extractDir = python.runPython("import sysconfig; sysconfig.get_path('purelib')");
  for (const [index, name] of packages.entries()) {
    say(`Loading ${name.split("-")[0]} (${index + 1} of ${packages.length}) ...`);
    python.unpackArchive(await (await read(folder + name)).arrayBuffer(), "wheel", { extractDir });
  }
  say("Starting ...");
  python.FS.mkdir(HOLDER);
  await python.runPythonAsync(RUN);
  run = python.globals.get("run");
}

function answer({ files, words, more, columns }) {
  // Files are mounted: what is read of them is what Python reads, and nothing is copied.
  python.FS.mount(python.FS.filesystems.WORKERFS, { files }, HOLDER);
  try {
    const names = files.map((file) => file.name).filter((name, _, all) =>
      all.length === 1 || /\.(onnx|ort)$/i.test(name));
    python.FS.chdir(HOLDER);
    const result = run(names, words, more, columns);
    const [code, out, err] = result.toJs();
    result.destroy();
    const hasPage = python.FS.analyzePath(RESULT).exists;
    return { code, out, err, page: hasPage ? python.FS.readFile(RESULT, { encoding: "utf8" }) : null };
  } finally {
    python.FS.chdir("/");
    python.FS.unmount(HOLDER);
  }
}

onmessage = async ({ data }) => {
  try {
    if (data.kind === "load") {
      await load(data.base);
      postMessage({ kind: "ready" });
    } else {
      postMessage({ kind: "answer", ...answer(data) });
    }
  } catch (fault) {
    // The last line of a Python traceback is the error itself.
    const text = String(fault.message ?? fault).trim().split("\n").at(-1);
    postMessage({ kind: "fault", text, isLoading: data.kind === "load" });
  }
};
