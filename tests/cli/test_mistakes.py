"""Typing mistakes: the nearest command, flag, choice, file or device is suggested."""

from pathlib import Path

import pytest
from models_on_disk import write_model

from onnxmem.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "empty").mkdir()
    write_model(tmp_path / "models" / "resnet50.onnx")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("fti models/resnet50.onnx", "did you mean 'fit'?"),
        ("help advsie", "did you mean 'advise'?"),
        ("hepl", "did you mean 'help'?"),
        ("models/resnet50.onnx --bacth 4", "did you mean '--batch'?"),
        ("models/resnet50.onnx --bacth=4", "did you mean '--batch'?"),
        ("fit models/resnet50.onnx --devise 24GiB", "did you mean '--device'?"),
        ("models/resnet50.onnx --train --precision bf61", "did you mean 'bf16'?"),
        ("models/resnet50.onnx --runtime ort-cup", "did you mean 'ort-cpu'?"),
        ("models/resnet5.onnx", "did you mean models/resnet50.onnx?"),
        ("model/resnet50.onnx", "did you mean models/resnet50.onnx?"),
        ("fit models/resnet50.onx --device 24GiB", "did you mean models/resnet50.onnx?"),
        ("check models/resnet5.onnx --budget-peak 1GiB", "did you mean models/resnet50.onnx?"),
        ("fit models/resnet50.onnx --device 4090", "did you mean RTX 4090"),
        ("fit models/resnet50.onnx --device RTX4091", "did you mean RTX 409"),
        ("empty", "no .onnx file is in it"),
        ("fit empty --device 24GiB", "no .onnx file is in it"),
        ("check empty --budget-peak 1GiB", "contains no .onnx file"),
    ],
)
def test_the_nearest_is_suggested(line: str, told: str, capsys: Capture) -> None:
    assert main(line.split()) in {2, 3}
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("fit models/resnet50.onnx --gpu T4", "did you mean '--device NAME|SIZE|auto'?"),
        ("fit models/resnet50.onnx --budget 8GiB", "did you mean '--device NAME|SIZE|auto'?"),
        ("models/resnet50.onnx --vram 8GiB", "did you mean '--budget SIZE'?"),
        ("advise models/resnet50.onnx --device T4", "did you mean '--budget SIZE'?"),
        ("check models --memory 1GiB", "did you mean '--budget-peak SIZE'?"),
        ("fit models/resnet50.onnx --gpus 4", "did you mean '--cards N[,N...]'?"),
        ("models/resnet50.onnx --train --gpus 4", "did you mean '--world N'?"),
        ("models/resnet50.onnx --image-size 64", "did you mean '--shape INPUT:1,3,224,224'?"),
        ("devices --rank price", "onnxmem fit has --rank;"),
        ("advise models/resnet50.onnx -v", "onnxmem MODEL has -v;"),
        ("measure models/resnet50.onnx --snapshot run.pickle", "onnxmem diff has --snapshot;"),
        ("models/resnet50.onnx --framework keras", "onnxmem explain keras MODEL has the figure"),
        ("models/resnet50.onnx --runtime tensorflow", "onnxmem explain keras MODEL has the figure"),
        ("models/resnet50.onnx --runtime cuda", "did you mean 'ort-cuda'?"),
        ("models/resnet50.onnx --train --precision fp16", "did you mean 'mixed-fp16'?"),
        ("models/resnet50.onnx --train --shard fsdp", "did you mean 'zero3'?"),
        ("fit models/resnet50.onnx --which-device --rank cost", "did you mean 'price'?"),
        ("models/resnet50.onnx --measure", "--measure cpu or cuda;"),
        ("measure models/resnet50.onnx --device gpu", "did you mean 'cuda'?"),
        ("sweep models/resnet50.onnx --batch 1 2 4", "a list has commas and no spaces"),
        (
            "simulate models/resnet50.onnx --requests a=1..8 b=2..9",
            "a list has commas and no spaces",
        ),
        ("models/resnet50.onnx --batch 1..64", "onnxmem sweep MODEL --batch 1..64"),
        ("help qqqq", "qqqq: no command of that name"),
        ("measure 4242", "of a process: --pid 4242"),
        ("measure models/resnet50.onnx --train", "onnxmem.torch.measure(module, inputs)"),
        ("explain 4x4 --dtype float16", "the type stands beside the shape"),
        ("how much memory does it take", "onnxmem explain 'how much memory does it take'"),
        ("4096x4096 fp16", "onnxmem explain '4096x4096 fp16'"),
        ("models/resnet50.onnx --budget auto", "onnxmem fit MODEL --device auto"),
        ("advise models/resnet50.onnx --budget T4", "onnxmem fit MODEL --device T4"),
    ],
)
def test_the_word_of_another_tool_leads_to_the_option(
    line: str, told: str, capsys: Capture
) -> None:
    assert main(line.split()) == 2
    (err,) = capsys.readouterr().err.splitlines()
    assert told in err


@pytest.mark.parametrize(
    "line",
    [
        *("qqqq", "models/qqqq.onnx", "gone/too/far.onnx", "models/resnet50.onnx --qqqq", ""),
        "explain process --budget 1GiB",
    ],
)
def test_nothing_is_suggested_for_what_is_like_nothing(line: str, capsys: Capture) -> None:
    assert main(line.split()) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_a_file_wins_over_a_command_that_it_is_like(folder: Path, capsys: Capture) -> None:
    write_model(folder / "fti")
    assert main(["fti"]) == 0
    assert capsys.readouterr().err == ""


def test_a_suggested_name_cannot_move_the_cursor(folder: Path, capsys: Capture) -> None:
    write_model(folder / "models" / "net\x1b[2J.onnx")
    assert main(["models/net[2J.onnx"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("line", ["--threads 4", "--concurrency 4", "--no-mem-reuse"])
@pytest.mark.parametrize("command", ["", "view "])
def test_an_option_of_a_server_names_the_commands_that_have_it(
    line: str, command: str, folder: Path, capsys: Capture
) -> None:
    write_model(folder / "net.onnx")
    assert main(f"{command}net.onnx {line}".split()) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert f"{line.split(maxsplit=1)[0]}: a report is of a session with default options" in told
    assert "onnxmem simulate MODEL --requests" in told
