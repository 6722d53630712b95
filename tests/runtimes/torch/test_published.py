"""Figures that others published: the tables are what their scripts print."""

import csv
import dataclasses
import gzip
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import DATA, MODELS, ROOT

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.runtimes import assumed

PUBLISHED = ROOT / "tools" / "training" / "published"


def test_contexts_in_messages_are_in_the_page() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "training" / "published" / "contexts.py"))
    page = (ROOT / "docs" / "cuda-context.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- contexts -->\n")
    assert script["table"]() == rest.partition("\n<!-- /contexts -->")[0]


def test_a_message_of_the_process_does_not_count_reserved_memory() -> None:
    """23.60 GiB in use, 22.90 allocated and 0.19 cached: the rest is the context's."""
    script = runpy.run_path(str(ROOT / "tools" / "training" / "published" / "contexts.py"))
    assert any(abs(context - 0.51) < 0.005 for context in script["contexts_gib"](of_process=True))


def test_the_page_says_what_is_counted() -> None:
    page = (ROOT / "docs" / "cuda-context.md").read_text(encoding="utf-8").replace("\n", " ")
    usual, old = assumed.TORCH_CONTEXT, assumed.OLD_TORCH_CONTEXT
    low, counted, high = (
        size // 2**20 for size in (usual.low_bytes, usual.size_bytes, usual.high_bytes)
    )
    assert f"counts {counted} MiB, about the median" in page
    assert f"The range beside it, {low} to {high} MiB" in page
    assert f"counts {old.size_bytes / 2**30:.2f} GiB of a range from" in page
    assert f"from {old.low_bytes // 2**20:,} to {old.high_bytes // 2**20:,} MiB" in page


def brackets() -> dict[str, Any]:
    return runpy.run_path(str(PUBLISHED / "brackets.py"))


def test_a_bracket_is_right_where_one_batch_runs_and_the_next_does_not() -> None:
    script = brackets()
    runs = script["Predicted"](11, Verdict.TIGHT)
    fails = script["Predicted"](13, Verdict.OVER)
    seen = script["Bracket"]("any", "nchw", 2, 3)
    is_right = script["is_right"]
    assert is_right(seen, {2: runs, 3: fails})
    assert not is_right(seen, {2: runs, 3: runs})
    assert not is_right(seen, {2: fails, 3: fails})
    assert is_right(script["Bracket"]("any", "nchw", 512, None), {512: runs})
    rows = list(script["by_verdict"]([(seen, {2: runs, 3: runs}), (seen, {2: runs, 3: fails})]))
    assert rows == ["| fits | 0 | 0 |", "| tight | 3 | 2 |", "| does not fit | 1 | 0 |"]


def test_every_bracket_has_a_batch_that_ran_and_a_larger_that_did_not() -> None:
    found = brackets()["brackets"]()
    assert len(found) == len({(one.network, one.layout) for one in found}) == 155
    assert all(one.failed is None or one.ran < one.failed for one in found)


def test_the_page_has_all_brackets() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- brackets -->\n")
    table = rest.partition("<!-- /brackets -->")[0]
    found = brackets()["brackets"]()
    for layout in ("nchw", "nhwc"):
        count = sum(one.layout == layout for one in found)
        right = int(table.split(f"\n| {layout} | {count} | ")[1].split()[0])
        assert right + table.count(f" | {layout} | ") == count


def test_a_step_of_the_benchmark_is_compared_with_its_card(tmp_path: Path) -> None:
    """ResNet-50's network, as PyTorch exports it: 200 of it in a few GiB, 2,000 nowhere."""
    packed = tmp_path / "resnet50.onnx.gz"
    packed.write_bytes(gzip.compress((MODELS / "resnet50.train.onnx").read_bytes()))
    found = brackets()["of_network"](packed, (200, 2000))
    assert (found[200].runs, found[2000].runs) == (True, False)


STORED = DATA / "training_published"


def steps() -> dict[str, Any]:
    return runpy.run_path(str(PUBLISHED / "steps.py"))


def table_of_steps() -> str:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- steps -->\n")
    return rest.partition("\n<!-- /steps -->")[0]


def test_every_published_step_has_its_source_and_its_network() -> None:
    with (PUBLISHED / "steps.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["source"] and row["printed"] and float(row["mib"]) > 0 for row in rows)
    networks = {path.name.partition(".onnx")[0] for path in STORED.glob("*.onnx.gz")}
    same_code = {row["network"] for row in rows if not row["other_code"]}
    assert same_code <= networks <= {row["network"] for row in rows}


@pytest.mark.parametrize(
    ("network", "most_percent"), [("bert-base.sdpa", 1.5), ("tsn_r50_8-48", 1.0)]
)
def test_a_step_on_a_real_gpu_is_predicted(network: str, most_percent: float) -> None:
    script = steps()
    rows = [one for one in script["steps"]() if one.network == network and not one.other_code]
    errors = script["errors_percent"](STORED / f"{network}.onnx.gz", rows[:2])
    assert errors
    assert all(abs(error) <= most_percent for error in errors)


def test_a_row_of_other_code_is_listed_apart() -> None:
    script = steps()
    step = script["steps"]()[0]
    same = script["Compared"](dataclasses.replace(step, other_code=""), 1.0)
    other = script["Compared"](dataclasses.replace(step, other_code="another norm"), -40.0)
    text = "\n".join(script["table"]([same, other]))
    assert "| all | 1 | 1.0 % | 1.0 % | +1.0 % |" in text
    assert "another norm | 1 | 40.0 % | 40.0 % | -40.0 % |" in text


@pytest.mark.slow
def test_the_page_has_the_table_of_steps() -> None:
    words = [sys.executable, str(PUBLISHED / "steps.py"), str(STORED)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert printed.rstrip() == table_of_steps()


def test_the_readme_leads_with_the_table_of_steps() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = next(line for line in table_of_steps().splitlines() if line.startswith("| all | "))
    count, median, ninth, worst = row.removeprefix("| all | ").removesuffix(" |").split(" | ")
    first = readme.partition("## How accurate it is")[2].split("|---|---|---|\n")[1].splitlines()[0]
    assert f"{count} rows (" in first
    assert f"median error {median}, 90th percentile {ninth}, worst {worst}" in first


def test_the_page_has_the_table_of_fused_attention() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "training" / "attention_table.py"))
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- attention -->\n")
    assert script["table"]() == rest.partition("\n<!-- /attention -->")[0]


TIMM = ROOT / "tools" / "training" / "timm_table.py"


def timm_table(*networks: str) -> str:
    words = [sys.executable, str(TIMM), *networks]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.rstrip()


def printed_of_timm() -> str:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    return page.partition("<!-- timm -->\n")[2].partition("\n<!-- /timm -->")[0]


def test_small_networks_of_timm_are_as_counted() -> None:
    """In float32 and under autocast."""
    text = timm_table("test_vit", "mobilenetv3_small_050", "lcnetv2_large")
    rows = [line.split(" | ") for line in text.splitlines() if " | unseen | " in line]
    assert [(row[3], row[4], row[6]) for row in rows] == [
        ("fp32", "3", "3 (100 %)"),
        ("mixed-bf16", "3", "3 (100 %)"),
    ]


def test_the_page_counts_all_networks_of_timm() -> None:
    steps = runpy.run_path(str(TIMM))["steps"]()
    lines = printed_of_timm().partition("\n\n")[0].splitlines()[2:]
    assert sum(int(line.split(" | ")[4]) for line in lines) == len(steps)


@pytest.mark.slow
def test_the_page_has_the_table_of_timm() -> None:
    assert timm_table() == printed_of_timm()
