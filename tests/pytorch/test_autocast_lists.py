"""The lists of autocast against those of the PyTorch that is installed."""

import re
from pathlib import Path

import pytest

from onnxmem.runtimes.torch.autocast_lists import AUTOCAST_LISTS

torch = pytest.importorskip("torch", reason="compares with PyTorch's lists: onnxmem[train]")

NEWEST = "2.13"
"""Lists of older releases are shorter, and those of newer ones may be longer."""

pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith(NEWEST), reason=f"the lists are those of PyTorch {NEWEST}"
)
BANNED = {"binary_cross_entropy"}
"""CUDA registers a function that raises an error."""


@pytest.mark.parametrize(("device", "key"), [("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")])
def test_every_operator_that_is_registered_has_a_row(device: str, key: str) -> None:
    dispatcher = torch._C  # noqa: SLF001 - the one registry of what runs under a dispatch key
    every = dispatcher._dispatch_get_all_op_names()  # noqa: SLF001
    registered = {
        name.removeprefix("aten::")
        for name in every
        if name.startswith("aten::") and dispatcher._dispatch_has_kernel_for_dispatch_key(name, key)  # noqa: SLF001
    }
    listed = {
        row.name
        for row in AUTOCAST_LISTS
        if row.device == device and row.source.startswith("aten/src/ATen/autocast_mode")
    }
    assert listed == registered - (BANNED if device == "cuda" else set())
    assert len(listed) > 100


def test_every_operator_has_the_policy_of_its_macro() -> None:
    """The header that PyTorch ships lists CUDA's operators by macro."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        pytest.skip("this build has no headers")
    macros = dict(re.findall(r"#define (AT_FORALL_\w+)\(_\)((?:.*\\\n)*.*)", header.read_text()))
    for macro in {row.source.partition(": ")[2] for row in AUTOCAST_LISTS if ".h: " in row.source}:
        rows = {row.name for row in AUTOCAST_LISTS if row.source.endswith(f".h: {macro}")}
        named = set(re.findall(r'"(\w+\.\w+)"', macros[macro])) or {
            ".".join(filter(None, each))
            for each in re.findall(r"_\((\w+)(?:, (\w+))?\)", macros[macro])
        }
        assert rows == named, macro
    policies = {
        row.source.partition(".h: ")[2]: row.policy
        for row in AUTOCAST_LISTS
        if ".h: " in row.source
    }
    # `_KERNEL_CUDA_FP32_SET_OPT_DTYPE` of autocast_mode.cpp gives each macro its policy.
    assert {macro: policy.value for macro, policy in policies.items()} == {
        "AT_FORALL_LOWER_PRECISION_FP": "lower_precision_fp",
        "AT_FORALL_FP32": "fp32",
        "AT_FORALL_FP32_SET_OPT_DTYPE": "fp32_set_opt_dtype",
        "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": "fp32_append_dtype",
        "AT_FORALL_PROMOTE": "promote",
    }
