"""Sessions that share the weights and packed copies of a program: predicted, measured.

Usage: python tools/onnxruntime/shared_weights.py MODEL.onnx [MODEL.onnx ...] [--sessions N]

Each needs a symbolic dim. Weights that a file lacks are random. onnxruntime's Python has no
container of packed weights, so a child calls the C API of the installed library by ``ctypes``. A
line has the resident MiB that a further session of the process adds, in the mean of all but the
first: with weights of its own, with those of the program (``AddInitializer``) and one container,
and with the program's alone.
"""

import argparse
import ctypes
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from onnx import numpy_helper
from ort_format import filled

from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.decisions.simulate import ServedModel, Serving, dims_of
from onnxmem.model.requests import listed_requests
from onnxmem.runtimes.onnxruntime.process.loading import arena_regions
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings

CHILD = "--child"
OWN, GIVEN, CONTAINED = MODES = ("own", "given", "contained")
MIB = 1 << 20
API_VERSION = 14
PLACES = {
    "GetErrorMessage": 2,
    "CreateEnv": 3,
    "CreateSession": 7,
    "CreateSessionOptions": 10,
    "SetIntraOpNumThreads": 24,
    "CreateTensorWithDataAsOrtValue": 49,
    "CreateCpuMemoryInfo": 69,
    "AddInitializer": 150,
    "CreatePrepackedWeightsContainer": 166,
    "CreateSessionWithPrepackedWeightsContainer": 168,
}
"""Of functions in ``OrtApi`` of onnxruntime_c_api.h, to which releases only add."""


def main() -> None:
    """Print a line for each model."""
    if sys.argv[1:2] == [CHILD]:
        create_sessions(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--sessions", type=int, default=4)
    asked = parser.parse_args()
    print("| model | own | predicted | one container | predicted | program's weights alone |")
    print("|---|---|---|---|---|---|")
    for path in asked.models:
        with TemporaryDirectory() as folder:
            whole = Path(folder, path.name)
            onnx.save(filled(onnx.load(path, load_external_data=False)), whole)
            measured = {mode: added_bytes(whole, mode, asked.sessions) for mode in MODES}
            predicted = predicted_bytes(whole, asked.sessions)
        sizes = (measured[OWN], predicted[0], measured[CONTAINED], predicted[1], measured[GIVEN])
        print("|", " | ".join((path.stem, *map(in_mib, sizes))), "|", flush=True)


def in_mib(size_bytes: float | None) -> str:
    """The cell of a size."""
    return "refused" if size_bytes is None else f"{size_bytes / MIB:.1f}"


def added_bytes(path: Path, mode: str, num_sessions: int) -> float | None:
    """What each further session adds to a child's resident memory; ``None``: it is refused."""
    words = [sys.executable, __file__, CHILD, mode, str(path), str(num_sessions)]
    found = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if found.returncode:
        print(path.stem, mode, found.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    sizes = list(map(int, found.stdout.split()))
    return (sizes[-1] - sizes[0]) / (num_sessions - 1)


def predicted_bytes(path: Path, num_sessions: int) -> tuple[float, float]:
    """The same of the prediction: as sessions are, and with one container."""
    request = request_of(str(path), Settings(runtimes=("ort-cpu",)))
    inputs = onnx.load(path, load_external_data=False).graph.input
    dims = (dim for value in inputs for dim in value.type.tensor_type.shape.dim)
    rows = listed_requests([{dim.dim_param: 1 for dim in dims if dim.dim_param}])
    model = ServedModel.of(request, rows, SessionOptions())
    totals = []
    for count in (1, num_sessions):
        serving = Serving(sessions=count)
        sessions = model.memory(serving, map(dims_of, rows.rows)).sessions
        if sessions is None:
            raise AssertionError
        arenas = (arena_regions(sessions.host.session.loaded_arena()),) * count
        own = sessions.total_bytes(arenas)
        totals.append((own, replace(sessions, shares_weights=True).total_bytes(arenas)))
    (one, one_shared), (all_, all_shared) = totals
    further = num_sessions - 1
    return (all_ - one) / further, (all_shared - one_shared) / further


def create_sessions(mode: str, path: str, num_sessions: int) -> None:
    """Print the resident bytes of this process after each session."""
    call = c_api()
    env, memory, container = (ctypes.c_void_p() for _ in range(3))
    call("CreateEnv", ctypes.c_int(3), b"sessions", ctypes.byref(env))
    call("CreateCpuMemoryInfo", ctypes.c_int(1), ctypes.c_int(0), ctypes.byref(memory))
    if mode == CONTAINED:
        call("CreatePrepackedWeightsContainer", ctypes.byref(container))
    given = [] if mode == OWN else program_weights(call, path, memory)
    for _ in range(num_sessions):
        options, session = ctypes.c_void_p(), ctypes.c_void_p()
        call("CreateSessionOptions", ctypes.byref(options))
        call("SetIntraOpNumThreads", options, ctypes.c_int(1))
        for name, value, *_ in given:
            call("AddInitializer", options, name, value)
        words: list[Any] = [env, path.encode(), options]
        if mode == CONTAINED:
            words.append(container)
            call("CreateSessionWithPrepackedWeightsContainer", *words, ctypes.byref(session))
        else:
            call("CreateSession", *words, ctypes.byref(session))
        fields = Path("/proc/self/statm").read_text().split()
        print(int(fields[1]) * 4096)


def program_weights(
    call: Callable[..., None], path: str, memory: ctypes.c_void_p
) -> list[Sequence[Any]]:
    """The weights of the file as values of the program: name, value, and what they refer to."""
    given = []
    for tensor in onnx.load(path).graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        dims, value = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape), ctypes.c_void_p()
        size = ctypes.c_size_t(array.nbytes)
        words = (memory, ctypes.c_void_p(array.ctypes.data), size, dims)
        kind = ctypes.c_int(tensor.data_type)
        rank = ctypes.c_size_t(array.ndim)
        call("CreateTensorWithDataAsOrtValue", *words, rank, kind, ctypes.byref(value))
        given.append((tensor.name.encode(), value, array, dims))
    return given


def c_api() -> Callable[..., None]:
    """Call a function of the C API by its name; a failure is an error with its text."""
    folder = Path(str(__import__("onnxruntime").__file__)).parent / "capi"
    library = ctypes.CDLL(str(next(folder.glob("libonnxruntime.so.*"))))
    library.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p)
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(library.OrtGetApiBase()[0])
    table = ctypes.cast(get_api(API_VERSION), ctypes.POINTER(ctypes.c_void_p))
    message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(table[PLACES["GetErrorMessage"]])

    def call(name: str, *words: Any) -> None:  # noqa: ANN401 - C types
        function = ctypes.CFUNCTYPE(ctypes.c_void_p)(table[PLACES[name]])
        status = function(*words)
        if status:
            raise RuntimeError(message(status).decode())

    return call


if __name__ == "__main__":
    main()
