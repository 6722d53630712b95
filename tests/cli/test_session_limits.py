"""Options of a session that no process runs with: one line, before anything is created."""

import pytest
from models_on_disk import write_model

from onnxmem.cli import main
from onnxmem.errors import UsageError
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions


@pytest.mark.parametrize("command", ["measure net.onnx", "simulate net.onnx --requests N=1..3"])
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--threads 99999999", "99,999,999 threads; a session has 1 to 1,024"),
        ("--threads 1025", "1,025 threads"),
        ("--malloc-threshold 0", "a malloc threshold of 0 B maps each small block"),
        ("--malloc-threshold 4095", "at least 4,096 B"),
    ],
)
def test_a_session_that_no_process_can_run_is_refused_in_one_line(
    command: str,
    flags: str,
    reason: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path_factory.mktemp("session")
    monkeypatch.chdir(folder)
    write_model(folder / "net.onnx")
    assert main([*command.split(), *flags.split()]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_the_ends_of_the_ranges_are_taken() -> None:
    assert SessionOptions(num_threads=1024).num_threads == 1024
    assert SessionOptions(malloc_threshold_bytes=4096).variables["MALLOC_TRIM_THRESHOLD_"] == "4096"
    with pytest.raises(UsageError, match="0 threads"):
        SessionOptions(num_threads=0)
