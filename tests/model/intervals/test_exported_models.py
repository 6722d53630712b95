"""Upper ends of exported models, compared with their runs: docs/accuracy.md has the table.

The runs were measured once (``tools/data_dependent``); the upper ends are those of today.
"""

from statistics import median

import pytest
from exported_models import exported_models
from paths import ROOT

NAMES = sorted(exported_models())
ROWS = {
    cells[0]: cells[1:]
    for line in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 9
}
QUICK = frozenset(
    {
        *("answer_spans", "ctc", "experts", "paddle_rows"),
        *("sklearn_texts", "tf_nms", "tf_unique", "vits", "voxels"),
    }
)


def table_row(name: str) -> list[str]:
    """A model's row: what the runs reached, and what they may reach at most."""
    model = exported_models()[name]
    upper = model.upper()
    assert list(model.beyond(upper.graph)) == []
    (found, most), peak = model.elements(upper.graph), model.requested_peak()
    peak_at_most = None if upper.unbounded else model.requested_peak_at_most()
    assert most is None or most >= found
    assert peak_at_most is None or peak_at_most >= peak
    cells = [f"{len(upper.unbounded)}"]
    for reached, limit in ((found, most), (peak, peak_at_most)):
        ratio = "" if limit is None else f"{limit / reached:.2f}"
        cells += [f"{reached:,}", "" if limit is None else f"{limit:,}", ratio]
    return cells


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_no_run_of_an_exported_model_is_beyond_its_upper_ends(name: str) -> None:
    assert exported_models()[name].runs["num_random_runs"] == 100
    assert ROWS[name][1:] == table_row(name)


DECODING = ("beam_search", "greedy_decoding", "tf_decoding", "transducer")


@pytest.mark.parametrize(
    "name", [n if n == "tf_decoding" else pytest.param(n, marks=pytest.mark.slow) for n in DECODING]
)
def test_no_run_of_a_decoding_loop_is_below_its_lower_end(name: str) -> None:
    least, found = exported_models()[name].requested_peaks_at_least()
    assert least is not None
    assert 0 < least <= found


def test_upper_ends_of_exported_models_are_close_to_what_runs_reach() -> None:
    rows = [cells for name, cells in ROWS.items() if name in NAMES]
    assert len(rows) == len(NAMES) >= 16
    assert median(float(cells[4] or "inf") for cells in rows) <= 3
    assert median(float(cells[7] or "inf") for cells in rows) <= 3
