"""One step of a module under PyTorch: its live bytes, its figures on a GPU, and the prediction."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import onnx
import pytest
from graphs import model_of
from paths import ROOT

torch = pytest.importorskip("torch", reason="onnxmem.torch needs PyTorch: onnxmem[train]")

from onnxmem.errors import UsageError  # noqa: E402 - what follows needs torch
from onnxmem.program.program import Category  # noqa: E402
from onnxmem.runtimes.torch.memory import Phase  # noqa: E402
from onnxmem.settings import OPTIMIZERS as KNOWN  # noqa: E402
from onnxmem.torch import measure, measuring  # noqa: E402

nn = torch.nn
Tensor: TypeAlias = Any
Module: TypeAlias = Any
FLOAT = 4
WEIGHT_BYTES = (3 * 5 + 5 + 5 * 2 + 2) * FLOAT
"""Of ``small``."""
INPUT_BYTES = 7 * 3 * FLOAT + 7 * 8
"""A batch of 7, and its labels."""
MLP = """agraph (float[n,3] x, float[5,3] w, float[5] a, float[2,5] v, float[2] b)
 => (float[n,2] y) { h = Gemm<transB=1>(x, w, a) r = Relu(h) y = Gemm<transB=1>(r, v, b) }"""


def small() -> Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


def images(batch: int = 7) -> Tensor:
    return torch.zeros(batch, 3)


class Answering(nn.Module):  # type: ignore[misc,name-defined]  # Any where torch is not installed
    """Outputs as a library of language models has them."""

    def __init__(self, outputs: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 5)
        self.outputs = outputs

    def forward(self, x: Tensor, y: Tensor | None = None) -> object:
        found = self.layer(x)
        return self.outputs(found if y is None else found + y)


class Novel(torch.optim.SGD):  # type: ignore[misc,name-defined]
    """An optimizer that no record describes."""


def test_every_term_of_a_small_network_by_hand() -> None:
    found = measure(small(), images(), optimizer="adam")
    assert found.weight_bytes == found.gradient_bytes == WEIGHT_BYTES
    assert found.optimizer_state_bytes == 2 * WEIGHT_BYTES + 4 * FLOAT
    assert found.input_bytes == INPUT_BYTES
    # ReLU's output, the logits, their log-softmax, the loss and the sum of its weights
    assert found.saved_activation_bytes == 7 * (5 + 2 + 2) * FLOAT + 2 * FLOAT
    assert found.buffer_bytes == 0
    assert [each.phase for each in found.phases] == [*Phase]
    for phase in found.phases:
        assert sum(phase.by_category().values()) == phase.peak_bytes
        assert phase.by_category()[Category.WEIGHT] == WEIGHT_BYTES
        assert phase.cuda is None
    assert found.peak.by_category()[Category.STATE] == found.optimizer_state_bytes
    assert found.peak_bytes == max(each.peak_bytes for each in found.phases)
    assert (found.device, found.prediction, found.error_percent) == (None, None, None)


def test_the_module_and_the_random_numbers_are_left_as_they_were() -> None:
    module = small().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    measure(module, images(), fake=False)
    assert not module.training
    assert all(each.grad is None for each in module.parameters())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_real_tensors_have_the_bytes_of_fake_ones() -> None:
    fake, real = (measure(small(), images(), fake=each) for each in (True, False))
    assert repr(fake) == repr(real)
    assert [each.peak_bytes for each in fake.phases] == [each.peak_bytes for each in real.phases]


def test_a_module_on_the_meta_device_needs_no_memory() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(2**20, 2**18), nn.ReLU())
        x = torch.zeros(1, 2**20)
    found = measure(module, x, optimizer="sgd")
    assert found.weight_bytes == (2**38 + 2**18) * FLOAT
    assert found.peak_bytes > 2 * found.weight_bytes


def test_a_frozen_layer_has_neither_gradient_nor_state() -> None:
    module = small()
    module[0].requires_grad_(requires_grad=False)
    found = measure(module, images(), optimizer="momentum")
    assert found.weight_bytes == WEIGHT_BYTES
    assert found.gradient_bytes == found.optimizer_state_bytes == (5 * 2 + 2) * FLOAT


def test_a_shared_weight_counts_once() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    found = measure(module, images(), optimizer="sgd")
    assert found.weight_bytes == found.gradient_bytes == (3 * 3 + 3 + 3) * FLOAT


def test_buffers_are_counted_apart() -> None:
    found = measure(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), images())
    assert found.buffer_bytes == (5 + 5) * FLOAT + 8


def test_an_optimizer_of_some_parameters_has_state_for_them() -> None:
    module = small()
    optimizer = torch.optim.SGD(module[2].parameters(), lr=0.1, momentum=0.9, nesterov=True)
    found = measure(module, images(), optimizer=optimizer)
    assert found.optimizer == "nesterov"
    assert found.optimizer_state_bytes == (5 * 2 + 2) * FLOAT
    assert found.gradient_bytes == WEIGHT_BYTES
    assert not optimizer.state


def test_an_optimizer_may_be_a_function_of_the_parameters() -> None:
    named = measure(small(), images(), optimizer="adamw")
    made = measure(small(), images(), optimizer=torch.optim.AdamW)
    assert (made.optimizer, made.peak_bytes) == ("adamw", named.peak_bytes)


def test_names_of_optimizers_are_those_of_the_command_line() -> None:
    assert set(measuring.OPTIMIZERS) <= set(KNOWN)
    for name in measuring.OPTIMIZERS:
        assert measure(small(), images(), optimizer=name).optimizer == name


def test_outputs_with_a_loss_of_their_own() -> None:
    found = measure(Answering(lambda y: {"loss": y.sum(), "logits": y}), images())
    assert found.input_bytes == 7 * 3 * FLOAT


@pytest.mark.parametrize(
    "outputs",
    [lambda y: (y,), lambda y: {"logits": y}, lambda y: SimpleNamespace(logits=y)],
    ids=["tuple", "dict", "attribute"],
)
def test_outputs_in_a_container_have_cross_entropy(outputs: Callable[[Any], Any]) -> None:
    assert measure(Answering(outputs), images()).input_bytes == INPUT_BYTES


def test_outputs_without_a_tensor_need_a_loss() -> None:
    with pytest.raises(UsageError, match="pass loss="):
        measure(Answering(lambda _: "text"), images())


def test_a_loss_of_the_users_own() -> None:
    found = measure(small(), images(), loss=lambda outputs: outputs.square().mean())
    assert found.input_bytes == 7 * 3 * FLOAT
    assert measure(small(), images(), loss="mse").input_bytes == 7 * (3 + 2) * FLOAT


def test_inputs_by_position_and_by_name_are_the_same() -> None:
    module, inputs = Answering(lambda y: y), (images(), torch.zeros(7, 5))
    by_name = measure(module, dict(zip("xy", inputs, strict=True)))
    assert by_name == measure(module, inputs)
    assert by_name.input_bytes == 7 * (3 + 5) * FLOAT + 7 * 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"optimizer": "adm"}, "optimizer 'adm': did you mean 'adam'"),
        ({"loss": "ms"}, "loss 'ms': did you mean 'mse'"),
        ({"optimizer": Novel, "export": True}, "no prediction for the optimizer 'novel'"),
    ],
)
def test_unknown_names_are_one_line(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        measure(small(), images(), **words)
    assert "\n" not in str(caught.value)


def test_a_module_that_reads_values_is_measured_with_real_tensors() -> None:
    module = Answering(lambda y: y if y.sum() > 0 else y + 1)
    with pytest.raises(UsageError, match=r"Answering reads values of tensors .*pass fake=False"):
        measure(module, images())
    assert measure(module, images(), fake=False).weight_bytes == 5 * (3 + 1) * FLOAT


def test_the_prediction_for_a_file_is_beside_the_measurement(tmp_path: Path) -> None:
    model = model_of(MLP)
    names = ("w", "a", "v", "b")
    parameters = dict(zip(names, small().parameters(), strict=True))
    for name, value in parameters.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.detach().numpy(), name))
    del model.graph.input[1:]
    onnx.save(model, tmp_path / "mlp.onnx")
    found = measure(small(), images(), optimizer="momentum", model=tmp_path / "mlp.onnx")
    assert found.prediction is not None
    assert found.prediction.training is not None
    assert found.prediction.training.saved_activation_bytes == found.saved_activation_bytes
    assert (found.predicted_peak_bytes, found.error_percent) == (found.peak_bytes, 0)
    assert repr(found).endswith("+0.0 %>")
    with pytest.raises(UsageError, match=r"the file has 1 inputs \(x\), not 2"):
        measure(Answering(lambda y: y), (images(), torch.zeros(7, 5)), model=tmp_path / "mlp.onnx")


def test_a_module_is_exported_for_its_prediction() -> None:
    pytest.importorskip("onnxscript")
    found = measure(small(), images(), export=True)
    assert found.predicted_peak_bytes == found.peak_bytes


def test_the_repr_has_the_main_figures_in_a_few_lines() -> None:
    found = measure(small(), images(), optimizer="sgd")
    lines = repr(found).splitlines()
    assert lines[0] == f"<MeasuredStep of Sequential sgd torch {torch.__version__}"
    assert lines[1].startswith(f"  peak {found.peak_bytes} B in backward: ")
    assert [line.split()[0] for line in lines[2:]] == ["forward", "backward", "optimizer"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.optimizer = "adam"  # type: ignore[misc]  # what must fail


def test_the_allocator_is_read_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU on which 100 bytes of 1,000 reserved were in use before, and each phase takes more."""
    peaks = {"allocated": iter(range(100, 1000, 7)), "reserved": iter(range(1000, 9000, 70))}
    on_cpu = measuring._with_data  # noqa: SLF001 - there is no GPU to copy to
    monkeypatch.setattr(measuring, "_with_data", lambda tensor, **_: on_cpu(tensor, "cpu"))
    is_available = iter([True])  # for us alone: an optimizer would ask the driver what it does
    fake = {
        "is_available": lambda: next(is_available, False),
        "empty_cache": lambda: None,
        "memory_allocated": lambda: 100,
        "memory_reserved": lambda: 1000,
        "reset_peak_memory_stats": lambda: None,
        "synchronize": lambda: None,
        "max_memory_allocated": lambda: next(peaks["allocated"]),
        "max_memory_reserved": lambda: next(peaks["reserved"]),
        "get_device_name": lambda: "NVIDIA X",
    }
    for name, function in fake.items():
        monkeypatch.setattr(torch.cuda, name, function)
    found = measure(small(), images())
    assert found.device == "NVIDIA X"
    # The second step's phases: the fourth to the sixth reading.
    read = [each.cuda for each in found.phases]
    assert read == [measuring.CudaPeak(21 + 7 * n, 210 + 70 * n) for n in range(3)]
    lines = repr(found).splitlines()
    size = found.phases[0].peak_bytes
    assert lines[2] == f"  forward {size} B, CUDA allocated 21 B, reserved 210 B"
    assert measure(small(), images(), cuda=False).device is None


@pytest.mark.parametrize("name", ["mlp", "squeezenet", "tiny_transformer"])
def test_a_module_of_the_training_truth_has_its_figures(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:

    for folder in ("tools", "tools/training"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    given = pytest.importorskip("given")
    network = next(each for each in given.NETWORKS if each.name == name)
    rows = json.loads((ROOT / "tests/data/training/truth.json").read_text())["rows"]
    batch = network.batches[0]
    row = next(each for each in rows if (each["model"], each["batch"]) == (name, batch))
    for optimizer in ("sgd", "adam"):
        found = measure(network.build(), network.inputs(batch), optimizer=optimizer)
        peaks = {f"{each.phase}_peak_bytes": each.peak_bytes for each in found.phases}
        state = {"optimizer_state_bytes": found.optimizer_state_bytes}
        assert row[optimizer] == peaks | state | {"peak_bytes": found.peak_bytes}
        for term in ("weight", "buffer", "gradient", "input", "saved_activation"):
            assert getattr(found, f"{term}_bytes") == row[f"{term}_bytes"], term


def test_the_guide_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    guide = (ROOT / "docs" / "guides" / "measured-by-you.md").read_text("utf-8")
    program, printed = guide.split("```python\n")[1].split("```")[::2][:2]
    exec(program, {})  # noqa: S102 - the guide's own lines
    version = re.compile(r"torch \S+")
    assert version.sub("torch", capsys.readouterr().out) == version.sub("torch", printed[1:])
