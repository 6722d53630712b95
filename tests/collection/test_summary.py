"""A registry summed up: figures, percentiles, the heaviest, what fits, what failed."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from models_on_disk import MYSTERY, write_model
from paths import MODELS

from onnxmem.analysis.analysis import analyze
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.analysis.fitting.verdicts import Basis, Verdict
from onnxmem.analysis.json_rows import Failure, JsonDict
from onnxmem.cli import main
from onnxmem.collection.many import analyze_many
from onnxmem.collection.summary import (
    Summary,
    Tally,
    Target,
    common_sizes,
    percentile,
    targets_of,
    verdicts_on,
)
from onnxmem.decisions.devices import DeviceError, catalog
from onnxmem.report.registry import (
    COLUMNS,
    csv_head,
    csv_row,
    jsonl_row,
    render_summary,
    summary_line,
    summary_row,
    table_head,
    table_row,
)
from onnxmem.report.text import fact
from onnxmem.settings import Settings


def row_of(
    path: str,
    weights: int,
    peak: int,
    status: str = "ok",
    train: int | None = None,
    verdict: Verdict | None = None,
) -> JsonDict:
    """The part of a model's JSON object that a summary reads."""
    row = Failure(path, "model_file", "-").to_dict()
    row |= {
        "status": status,
        "error": None,
        "weights": {"bytes": weights},
        "total_bytes": weights + peak + 7,
    }
    row["activations"] = {"in_place_peak_bytes": peak}
    if verdict is not None:
        row["devices"] = [{"name": "it", "basis": Basis.TOTAL.value, "verdict": verdict.value}]
    if train is not None:
        row["training"] = {"peak_bytes": train, "cuda": {"total_bytes": train + 11}}
    return row


def summed(*rows: JsonDict, held: tuple[Target, ...] = ()) -> Summary:
    tally = Tally()
    for row in rows:
        tally.add(row)
    return tally.summary(held)


ROWS = (
    row_of("a", 101, 3),
    row_of("b", 211, 5, status="partial"),
    Failure("c", "model_file", "no model").to_dict(),
    row_of("d", 307, 13),
    Failure("e", "worker_died", "gone").to_dict(),
    Failure("f", "model_file", "no model").to_dict(),
)


@pytest.mark.parametrize(
    ("numbers", "percent", "expected"),
    [
        ([5], 50, 5),
        ([3, 5], 50, 3),
        ([3, 5, 7], 50, 5),
        (list(range(1, 101)), 90, 90),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 102)), 99, 100),
        ([3, 5, 7], 0, 3),
    ],
)
def test_percentiles_are_nearest_ranks(numbers: list[int], percent: int, expected: int) -> None:
    assert percentile(numbers, percent) == expected


def test_figures_exclude_unknown_values_and_mark_partial_ones() -> None:
    summary = summed(*ROWS)
    assert summary.num_models == 6
    assert summary.statuses == {"ok": 2, "partial": 1, "error": 3}
    assert summary.faults == {"model_file": 2, "worker_died": 1}
    weights, peak, total = summary.figures
    assert (weights.name, weights.sum_bytes, weights.num_known) == ("weights", 619, 3)
    assert (weights.num_partial, weights.max_bytes) == (1, 307)
    assert (peak.sum_bytes, total.sum_bytes) == (21, 619 + 21 + 21)
    assert weights.percentiles == ((50, 211), (90, 307), (99, 307))
    assert summary.heaviest == (("d", 327), ("b", 223), ("a", 111))
    assert summary.heaviest_by == "total"


def test_a_model_lacks_only_the_dims_that_it_does_not_have() -> None:
    def lacking(path: str, *names: str) -> JsonDict:
        row = row_of(path, 101, 3)
        row["findings"] = [
            {"code": "unused_dim", "message": f"--dim {name}: no input has a dim of that name"}
            for name in names
        ]
        return row

    summary = summed(lacking("a", "S", "T"), lacking("b", "T"), lacking("c", "S", "T"))
    counts = [(each.message.partition(":")[0], each.num_models) for each in summary.notes]
    assert counts == [("--dim T", 3), ("--dim S", 2)]
    assert summary_row(summary)["findings"] == {"unused_dim": 3}


def test_models_of_unknown_verdict_are_named() -> None:
    rows = [row_of(name, 101, 3, verdict=Verdict.UNKNOWN) for name in "abcdefg"]
    rows.append(row_of("fitting", 101, 3, verdict=Verdict.FITS))
    text = render_summary(summed(*rows, held=(Target("it", 1000),)))
    assert "1 of 8 fit, 0 too large, 7 unknown" in text
    assert "  unknown: a, b, c, d, e and 2 more\n" in text


def test_codes_of_messages_are_counted_once_a_model_and_in_the_order_of_a_report() -> None:
    codes = [f"code_{number}" for number in range(20)]
    row = row_of("a", 101, 3) | {"findings": [{"code": c, "message": c} for c in (*codes, *codes)]}
    assert list(summed(row).findings.items()) == [(code, 1) for code in codes]


def test_a_training_figure_without_trained_weights_is_marked() -> None:
    row = row_of("a", 101, 3, train=211)
    row["findings"] = [{"code": "nothing_to_train", "message": "-", "node": None}]
    assert table_row(row, train=True).endswith("a   training: no trainable weights\n")
    assert table_row(row, train=False).endswith("   a\n")


def test_a_row_is_not_broken_within_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = MODELS / "bert_base.onnx"
    row = analyze(path, budget_bytes=8 * 2**30).to_dict() | {"path": "models/a/bert_base.onnx"}
    lines = [line.strip() for line in table_row(row, train=False).splitlines()]
    assert "unknown: at most 7.59 GiB free" in lines
    assert lines[0].endswith("models/a/bert_base.onnx")


@pytest.mark.parametrize(("num_bytes", "takes"), [(101 + 3 + 7, ""), (211, ", takes 211 B")])
def test_a_row_has_what_is_compared_where_no_column_has_it(num_bytes: int, takes: str) -> None:
    row = row_of("a", 101, 3) | {
        "verdict": {
            "verdict": Verdict.FITS.value,
            "bytes": num_bytes,
            "unlimited_bytes": num_bytes,
            "limit_bytes": 307,
            "doubts": [],
        }
    }
    assert table_row(row, train=False).endswith(f"a   fits: {307 - num_bytes} B free{takes}\n")
    text = render_summary(summed(row, row, ROWS[2]))
    assert f"\n{fact('  budget', '2 fit')}\n" in text
    assert "  budget" not in render_summary(summed(*ROWS))


def test_the_heaviest_models_are_by_training_peak_with_train() -> None:
    rows = [row_of(f"m{n}", 10 * n, 1, train=1000 - n) for n in range(7)]
    summary = summed(*rows)
    assert [figure.name for figure in summary.figures][-1] == "training"
    assert summary.heaviest == tuple((f"m{n}", 1000 - n) for n in range(5))


def test_a_total_of_unknown_values_is_unknown_and_not_zero() -> None:
    summary = summed(ROWS[2])
    assert summary.figures[0].sum_bytes is None
    assert summary.figures[0].max_bytes is None
    text = render_summary(summary)
    assert "weights                    unknown" in text
    assert "PERCENTILES" not in text


def test_verdicts_are_counted_and_missing_ones_are_unknown() -> None:
    rows = [row_of(f"m{n}", 1, 1, verdict=each) for n, each in enumerate([*Verdict, Verdict.FITS])]
    (fitting,) = summed(*rows, ROWS[2], held=(Target("it", 222),)).fittings
    assert fitting.basis is Basis.TOTAL
    counts = (fitting.fits, fitting.tight, fitting.does_not_fit, fitting.unknown)
    assert counts == (2, 1, 1, 2)


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize("train", [False, True])
def test_a_device_of_a_collection_has_the_verdict_of_fit(
    train: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_model(tmp_path / "net.onnx")
    model = str(tmp_path / path)
    flags = ["--batch", "64", *(["--train"] if train else [])]
    for size in ("1MiB", "540MiB", "600MiB", "24GiB"):
        main(["fit", model, "--device", size, *flags, "--json"])
        one = json.loads(capsys.readouterr().out)["verdict"]
        main([model, model, "--device", size, *flags, "--json"])
        (row, _) = json.loads(capsys.readouterr().out)["models"]
        assert row["devices"][0]["verdict"] == one


@pytest.mark.usefixtures("without_children")
def test_a_device_of_a_collection_has_its_own_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / write_model(tmp_path / "net.onnx"))

    def taken(requested: str, own: str | None) -> int | None:
        runs = Settings(runtimes=("ort-cpu",), cpu=requested, asks_onnxruntime=False, batch=67)
        place = Target("board", 2**30, "cpu", cpu=own)
        return next(verdicts_on(request_of(model, runs), [place])).compared.num_bytes

    on = {cpu: taken(cpu, None) for cpu in ("arm64", "avx512")}
    assert on["arm64"] != on["avx512"]
    assert taken("avx512", "arm64") == on["arm64"]
    words = [model, model, "--device", "raspberry pi 5", "--runtime", "ort-cpu", "--summary"]
    words += ["--jobs", "1"]
    assert main(words) == 0
    assert "2 of 2 fit, 0 too large, on the device's arm64" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main([*words, "--cpu", "avx2"]) == 0
    assert "arm64" not in capsys.readouterr().out


def test_targets_by_name_by_size_and_none() -> None:
    devices = catalog()
    named = targets_of(["RTX 4090", "24GiB", "24GiB"], devices)
    assert [(place.name, place.kind) for place in named] == [("RTX 4090", "cuda"), ("24GiB", None)]
    with pytest.raises(DeviceError, match="a size such as 24GiB is also accepted"):
        targets_of(["RTX 40900000"], devices)
    with pytest.raises(DeviceError):
        targets_of(["4096"], devices)
    common = targets_of([], devices)
    assert common == common_sizes(devices)
    assert [place.limit_bytes for place in common] == sorted(each.limit_bytes for each in common)
    assert all(place.kind is None for place in common)


def test_a_summary_in_json_has_the_same_values() -> None:
    row = summary_row(summed(*ROWS, held=(Target("size", 222),)))
    assert json.loads(json.dumps(row)) == row
    assert row["devices"] == [
        {
            "name": "size",
            "limit_bytes": 222,
            "basis": None,
            "fits": 0,
            "tight": 0,
            "does_not_fit": 0,
            "unknown": 6,
        }
    ]
    assert row["errors"] == {"model_file": 2, "worker_died": 1}


def test_the_words_of_a_summary() -> None:
    text = render_summary(summed(*ROWS, held=(Target("size", 222),)))
    for words in (
        "Total of 6 models: 2 ok, 1 partial, 3 failed\n",
        "  weights                      619 B\n",
        "   lower bound: 1 model incomplete\n",
        "Heaviest by inference\n",
        "222 B   0 of 6 fit, 0 too large, 6 unknown\n",
        "Failed, by code\n  model_file                2\n",
    ):
        assert words in text


def test_the_error_of_what_fits_is_that_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A card sets the workspace of cuBLAS, as an option does; a size alone does not."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.onnx", "b.onnx"):
        write_model(tmp_path / name)
    step = ["a.onnx", "b.onnx", "--summary", "--train", "--batch", "2"]

    def errors(*options: str) -> list[str]:
        main([*step, *options])
        text = capsys.readouterr().out.partition("\nFits, each model alone\n")[2]
        return re.findall(r"^  (accuracy.*? %)", text, re.MULTILINE)

    assert errors("--device", "24GiB") == ["accuracy: +-11 %"]
    assert errors("--device", "24GiB", "--cublas-workspace", "8MiB") == ["accuracy: +-9 %"]
    assert errors("--device", "24GiB", "--device", "H100") == [
        "accuracy (24GiB): +-11 %",
        "accuracy (H100 SXM): +-9 %",
    ]


def session(name: str, key: str, size_bytes: int) -> JsonDict:
    """The part of a session's JSON object that a summary reads."""
    return {"runtimes": [{"name": name, key: size_bytes}]}


def test_a_runtime_that_is_requested_has_a_column_and_ranks_the_models() -> None:
    rows = [
        row_of("light", 2**20, 2**20) | session("ort-cpu", "process_bytes", 53 * 2**20),
        row_of("heavy", 2**20, 3) | session("ort-cpu", "process_bytes", 59 * 2**20),
    ]
    assert table_head(train=False, runtimes=("ort-cpu",)).split()[3] == "PROCESS"
    cells = [table_row(row, train=False, runtimes=("ort-cpu",)).split()[3] for row in rows]
    assert cells == ["53.00", "59.00"]
    summary = summed(*rows)
    assert summary.heaviest_by == "process"
    assert summary.heaviest == (("heavy", 59 * 2**20), ("light", 53 * 2**20))
    assert "  process of onnxruntime" in render_summary(summary)
    on_cuda = summed(row_of("a", 3, 5) | session("ort-cuda", "held_steady_bytes", 2**20))
    assert on_cuda.heaviest_by == "arena"
    assert "PROCESS" not in table_head(train=False)


def test_the_summary_in_one_line_begins_with_the_counts() -> None:
    assert summary_line(summed(*ROWS)) == (
        "6 models: 2 ok, 1 partial, 3 failed; inference at least 661 B in all\n"
    )
    judged = [
        row_of(name, 101, 3) | {"verdict": {"verdict": verdict}}
        for name, verdict in (("a", "fits"), ("b", "does not fit"), ("c", "fits"))
    ]
    line = summary_line(summed(*judged))
    assert line == "3 models: 2 fit, 1 do not fit; inference 333 B in all\n"


def test_each_model_has_one_line() -> None:
    head = table_head(train=True)
    lines = [table_row(row, train=True) for row in ROWS]
    assert head.endswith("   MODEL (sizes in MiB)\n")
    assert "TRAINING" not in table_head(train=False)
    assert {line.index("   " + name) for line, name in zip(lines, "abcdef", strict=True)} == {
        head.index("   MODEL")
    }
    assert lines[1].endswith("b   partial: lower bounds\n")
    assert lines[4].endswith("e   error: worker_died\n")


def test_the_tables_of_a_collection_have_one_unit() -> None:
    """The rows are written as they come, before the largest is known: in MiB, named at the top."""
    rows = [row_of("small", 6_400, 3 * 2**20), row_of("large", 14 * 2**30, 2**20)]
    cells = [table_row(row, train=False).split()[:3] for row in rows]
    assert cells == [["0.0061", "3.00", "3.01"], ["14,336.00", "1.00", "14,337.00"]]
    summary = render_summary(summed(*rows, held=(Target("a", 2**20), Target("b", 2**34))))
    for block in ("Total of", "Heaviest by", "Fits"):
        lines = summary.partition(block)[2].partition("\n\n")[0].splitlines()[1:]
        units = {
            unit for line in lines for unit in re.findall(r"[\d.]+ ([KMGT]?i?B)   ", f"{line}   ")
        }
        assert len(units) == 1, lines


def test_columns_of_real_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    names = ["net.onnx", "mystery.onnx", "gone.onnx", "=cmd()|a,b\n.onnx"]
    rows = list(analyze_many(names, train=True, budget_bytes=2**20))
    table = list(csv.DictReader(io.StringIO(csv_head() + "".join(map(csv_row, rows)))))
    assert tuple(table[0]) == tuple(column.replace(".", "_") for column in COLUMNS)
    assert table[0]["total_bytes"] == str(rows[0]["total_bytes"])
    assert int(table[0]["training_peak_bytes"]) > 0
    assert table[0]["settings_train"] == "true"
    assert table[0]["findings"] == "1"
    assert table[0]["notes"].startswith("unbound_dims: dynamic dims without a value")
    assert table[0]["error_code"] == ""
    assert table[2]["total_bytes"] == ""
    assert table[2]["error_code"] == "missing_file"
    assert table[3]["path"] == r"'=cmd()|a,b\x0a.onnx"
    assert [json.loads(jsonl_row(row)) for row in rows] == rows


def test_a_row_has_every_column_that_was_requested(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    write_model(path)
    (row,) = analyze_many([path], train=True, budget_bytes=2**20)
    asked_for = {"error", "runtime", "measured"}
    for column in set(COLUMNS) - {"notes"}:
        value: object = row
        if column.startswith("data_dependent."):
            continue  # only where the data of a run decide
        for key in column.split("."):
            if value is None and column.partition(".")[0] in asked_for:
                break
            assert isinstance(value, dict)
            value = value[key]
