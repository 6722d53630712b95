"""The lists of autocast: one policy for each operator of ONNX, by device and release."""

from collections import Counter, defaultdict

import pytest

from onnxmem.ops.registry import UNKNOWN, lookup
from onnxmem.runtimes.torch import framework
from onnxmem.runtimes.torch.autocast_lists import AUTOCAST_LISTS, Policy, lists_of
from onnxmem.settings import TORCHES

DEVICES = ("cuda", "cpu")
OF_THE_FRAMEWORK = {
    *(each.op_type for each in vars(framework).values() if hasattr(each, "op_type")),
    *("cross_entropy_loss", "mse_loss"),
}


@pytest.mark.parametrize("device", DEVICES)
def test_rows_name_known_operators(device: str) -> None:
    names = {name for row in AUTOCAST_LISTS if row.device == device for name in row.written_as}
    assert names == set(lists_of(device))
    unknown = {name for name in names if lookup(name) is UNKNOWN}
    assert unknown <= OF_THE_FRAMEWORK
    assert "linear" in unknown


@pytest.mark.parametrize("device", DEVICES)
def test_an_operator_is_on_one_list_of_a_device(device: str) -> None:
    counts = Counter(row.name for row in AUTOCAST_LISTS if row.device == device)
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("device", DEVICES)
def test_an_operator_of_onnx_has_one_policy(device: str) -> None:
    """Whichever operator of PyTorch it was written for."""
    policies = defaultdict(set)
    for row in (row for row in AUTOCAST_LISTS if row.device == device):
        for name in row.written_as:
            policies[name].add(row.policy)
    several = {name: found for name, found in policies.items() if len(found) > 1}
    norms = {Policy.FLOAT32_RESULT, Policy.APPENDED_FLOAT32}
    same = {"ReduceL1": norms, "ReduceL2": norms} if device == "cuda" else {}
    assert several == same


@pytest.mark.parametrize(
    ("name", "releases"),
    [
        ("Resize", ("2.5", "latest")),
        ("ReduceLogSumExp", ("2.0", "2.5", "latest")),
        ("RMSNormalization", ("latest",)),
        ("scaled_dot_product_attention", ("2.0", "2.5", "latest")),
        ("ReduceL2", TORCHES),
        ("MatMul", TORCHES),
    ],
)
def test_lists_grew_from_release_to_release(name: str, releases: tuple[str, ...]) -> None:
    assert tuple(each for each in TORCHES if name in lists_of("cuda", each)) == releases


@pytest.mark.parametrize(
    ("device", "name", "policy"),
    [
        ("cuda", "Einsum", Policy.LOWER),
        ("cpu", "Einsum", Policy.LOWER),
        ("cuda", "ReduceL2", Policy.FLOAT32_RESULT),
        ("cuda", "CumSum", Policy.FLOAT32_RESULT),
        ("cuda", "GridSample", Policy.PROMOTE),
        ("cpu", "GridSample", Policy.FLOAT32),
        ("cuda", "ScatterElements", Policy.PROMOTE),
        ("cpu", "Concat", Policy.PROMOTE),
    ],
)
def test_an_operator_has_the_policy_of_the_device(device: str, name: str, policy: Policy) -> None:
    assert lists_of(device)[name] is policy


@pytest.mark.parametrize("name", ["Concat", "MaxPool", "AveragePool", "Pad", "BatchNormalization"])
def test_what_cuda_does_not_list_runs_in_its_operands_type(name: str) -> None:
    assert name not in lists_of("cuda")
