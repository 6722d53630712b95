"""Warnings name the limits of --max that lower what a run takes at most, and those that do not."""

import json
import re
from pathlib import Path

import onnx
import pytest
from graphs import SEQUENCE, model_of

import onnxmem
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.cli import main
from onnxmem.errors import ShapeError
from onnxmem.settings import Settings

# The rows of ``b`` are live at the peak with those of ``a``; those of ``c`` are not.
ROWS = """agraph (float[3,31] x, bool[31] p, float[3,17] z, bool[17] q, float[2] w, bool[2] r)
    => (float[3] e, float[3] f, float v) <int64[1] one = {1}> {
    c = Compress<axis = 0>(w, r)  v = ReduceSum<keepdims = 0>(c)
    a = Compress<axis = 1>(x, p)  b = Compress<axis = 1>(z, q)  d = Abs(a)  g = Abs(b)
    e = ReduceSum<keepdims = 0>(d, one)  f = ReduceSum<keepdims = 0>(g, one)
}"""
UNBOUNDED = """agraph (float[3,1] x, int64[1] n, int64[1] m, int64[1] k)
    => (float[a,b] y, float[c,d] z) <int64[1] one = {1}> {
    s = Concat<axis = 0>(one, n)  y = Expand(x, s)  t = Concat<axis = 0>(m, k)  z = Tile(x, t)
}"""


def limits(text: str) -> tuple[str, ...]:
    return request_of(model_of(text), Settings()).results.deciding_limits


def test_the_dim_of_most_bytes_is_the_first() -> None:
    assert limits(ROWS) == ("a:1", "b:1")


def test_a_sequence_is_bounded_by_the_iterations_that_fill_it() -> None:
    """Its dims are those of each element, and what is made of it is not live at the peak."""
    assert limits(SEQUENCE) == ("Loop_2:iterations",)


def test_a_limit_named_by_a_warning_lowers_the_upper_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "model.onnx")
    for text in (ROWS, SEQUENCE):
        onnx.save(model_of(text), path)
        (name, *_) = limits(text)
        ends = []
        for flags in ([], ["--max", f"{name}=2"]):
            main([path, "--json", *flags])
            found = json.loads(capsys.readouterr().out)["models"][0]
            ends.append(found["data_dependent"]["total_upper_bytes"])
            assert "idle_limit" not in [each["code"] for each in found["findings"]]
        assert ends[1] < ends[0]


@pytest.mark.parametrize(
    ("text", "name"), [(ROWS, "c:0=1"), (ROWS, "a:1=31"), (SEQUENCE, "z:0=7"), (SEQUENCE, "z=40")]
)
def test_a_limit_that_changes_nothing_says_so(
    text: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "model.onnx")
    onnx.save(model_of(text), path)
    assert main([path, "--max", name]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"idle_limit: --max {name}: what a run takes is at most" in words


WORDS = """agraph (string[24] text, float[13] x, bool[13] m) => (few, z) {
    few = StringNormalizer<case_change_action = "LOWER", is_case_sensitive = 1, locale = "C",
        stopwords = ["a"]>(text)
    z = Compress<axis = 0>(x, m)
}"""


def test_a_limit_on_strings_bounds_no_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "model.onnx")
    onnx.save(model_of(WORDS), path)
    assert main([path, "--max", "few:0=3"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    strings = "the bytes of the strings of 'text', 'few'"
    assert f"the data of a run decide 'few:0', 'z:0', and {strings}" in words
    assert f"is without a bound with and without it, for no limit bounds {strings}" in words
    onnx.save(model_of("agraph (string[5] t) => (y) { y = Identity(t) }"), path)
    assert main([path]) == 0
    assert "the bytes of strings are unknown and left out" in capsys.readouterr().out


def test_a_limit_below_the_least_is_refused() -> None:
    model = model_of(SEQUENCE)
    with pytest.raises(ShapeError, match="--max z:0: it is at least 3 in every run"):
        onnxmem.analyze(model, most={"z:0": 2})
    # At other batches the least is larger: the limit of this one says nothing of them.
    assert onnxmem.analyze(model, most={"z:0": 3}).to_dict()["batch_law"] is None


def test_a_refusal_has_the_name_that_the_user_wrote() -> None:
    model = model_of("""agraph (float[3,7] x, bool[3] m) => (float[rows,7] y) {
        k = Compress<axis = 0>(x, m)  y = Concat<axis = 0>(k, x)
    }""")
    with pytest.raises(ShapeError, match="--max rows: it is at least 3 in every run"):
        onnxmem.analyze(model, most={"rows": 2})


@pytest.mark.parametrize(
    ("outputs", "flag"),
    [
        ("float[rows,7] y, float[other] z", "--max rows=100"),
        # A limit of the name of two dims would be one of both.
        ("float[rows,7] y, float[rows] z", "--max y:0=100"),
    ],
)
def test_a_dim_has_the_name_that_the_file_declares(outputs: str, flag: str) -> None:
    model = model_of(f"""agraph (float[3] x, int64[1] n) => ({outputs})
        <float[1,7] one, int64[1] seven = {{7}}, int64[1] front = {{0}}> {{
        c = Mul(n, n)  s = Concat<axis = 0>(c, seven)  y = Expand(one, s)
        p = NonZero(x)  q = Cast<to = 1>(p)  z = Squeeze(q, front)
    }}""")
    results = onnxmem.analyze(model).results
    assert results.data_flags() == flag
    assert repr(flag.split()[1].partition("=")[0]) in results.data_text()


KEPT_AND_ALL = """agraph (float[13,7] x, bool[13] m) => (y, s) <bool on = {1}, int64 five = {5}> {
    k = Compress<axis = 0>(x, m)  y = Concat<axis = 0>(k, x)
    rows = Shape<end = 1>(y)  n = Squeeze(rows)
    z, s = Loop(n, on, k) <
        body = iteration(int64 i, bool c, float[K,7] h) => (co, ho, so) {
            co = Identity(c)  ho = Relu(h)  so = ReduceSum(h)
        }
    >
    t, u = Loop(five, on, k) <
        body = inner(int64 i, bool c, float[K,7] g) => (d, go, o) {
            d = Identity(c)  go = Relu(g)  o = Identity(g)
        }
    >
}"""
"""y has 13 rows and what is kept of 13; the first Loop has as many iterations."""


@pytest.mark.parametrize(
    ("name", "number", "fault"),
    [
        ("y", 90, "it is at least 91 elements in every run"),
        ("Loop_4:iterations", 12, "it is at least 13 in every run"),
        ("s:0", 12, "it is at least 13 in every run"),
        ("Loop_5:iterations", 3, "the data of a run do not decide it, it is 5"),
        ("Loop_5/body/o:1", 3, "the data of a run do not decide it, it is 7"),
        ("Loop_4/body/so", 3, "the data of a run do not decide it, it is 1"),
    ],
)
def test_a_limit_that_no_run_keeps_is_refused(name: str, number: int, fault: str) -> None:
    with pytest.raises(ShapeError, match=f"--max {re.escape(name)}: {fault}"):
        onnxmem.analyze(model_of(KEPT_AND_ALL), most={name: number})


def test_dims_without_a_bound_are_named_by_their_bytes() -> None:
    """At 100 each, z has 300 rows of 100, and y 3 of 100."""
    assert limits(UNBOUNDED) == ("z:0", "z:1", "y:1")


def test_a_sequence_that_a_caller_passes_has_no_size() -> None:
    """With its own bytes unknown, no limit bounds what a run takes."""
    found = onnxmem.analyze(
        model_of("""agraph (seq(float[3,4]) s) => (float[k,4] y) {
            z = ConcatFromSequence<axis = 0>(s)  y = Exp(z)
        }"""),
        most={"z:0": 30},
    )
    assert found.at_most is None
    assert found.results.without_size == ("s",)
    assert found.results.data_flags() == ""


def test_a_limit_of_a_sum_or_of_an_input_names_what_to_give() -> None:
    text = """agraph (float[N,7] x, bool[N] c) => (float[kept,7] y, float[s,7] z) {
        y = Compress<axis = 0>(x, c)  w = Concat<axis = 0>(y, x)  z = Neg(w)
    }"""
    for name, told in (
        ("kept + N", "limit what it is computed from, --max kept=N; the data of a run decide"),
        ("N", "inputs have it: --dim N=N; the data of a run decide"),
    ):
        with pytest.raises(ShapeError, match=re.escape(told)):
            onnxmem.analyze(model_of(text), batch=5, most={name: 3})


def test_a_limit_of_a_sum_that_the_file_declares() -> None:
    """Where data decide nothing of it, it has the number that its dims give."""
    text = """agraph (float[A,7] x, float[B,7] z, bool[A] c) => (float[s,7] s, float[t,7] t) {
        q = Compress<axis = 0>(x, c)
        u = Concat<axis = 0>(z, x)  s = Neg(u)
        w = Concat<axis = 0>(z, q)  t = Neg(w)
    }"""
    model, dims = model_of(text), {"A": 3, "B": 4}
    for output, sum_of_dims in zip(model.graph.output, ("A + B", "B + kept"), strict=True):
        output.type.tensor_type.shape.dim[0].dim_param = sum_of_dims
    with pytest.raises(ShapeError, match="do not decide it, it is 7; omit --max"):
        onnxmem.analyze(model, dims=dims, most={"A + B": 6})
    at_most = onnxmem.analyze(model, dims=dims, most={"B + kept": 6}).at_most
    assert at_most is not None
    assert at_most.graph.tensors["w"].shape == (6, 7)


LARGE_BRANCH = """agraph (float[64] x, bool c) => (float[k] z) {
    z = If (c) <
        then_branch = g1 () => (float[k] t) {
            i = NonZero(x) j = Cast<to = 1>(i) t = Flatten<axis = 0>(j)
        },
        else_branch = g2 () => (float[k] u) { u = Neg(x) }
    >
}"""


@pytest.mark.parametrize(
    ("limit", "settling"),
    [("600B", "--max If_0/then_branch/i:1=N bounds it"), ("520B", "--value c=N sets")],
)
def test_only_a_limit_that_may_settle_a_verdict_is_named(
    limit: str, settling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other branch takes 257 + 256 B, and whatever it is copied to: 521 B of 520."""
    path = str(tmp_path / "model.onnx")
    onnx.save(model_of(LARGE_BRANCH), path)
    assert main(["fit", path, "--device", limit]) == 3
    text = " ".join(capsys.readouterr().out.split())
    assert settling in text
    assert ("--max" in text) == settling.startswith("--max")
    settled = ["--max", "If_0/then_branch/i:1=1"] if "--max" in settling else ["--value", "c=1"]
    settled += [] if "--max" in settling else ["--max", "If_0/then_branch/i:1=2"]
    assert main(["fit", path, "--device", limit, *settled]) == 0
