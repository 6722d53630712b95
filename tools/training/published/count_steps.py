"""Steps of language models that others measured, counted with the code that ran.

    export PYTHONPATH=tools/training:tools/training/published:.
    python tools/training/published/count_steps.py NETWORK BATCH SEQUENCE

Needs the release of transformers that `steps.csv` names (`code`). It counts what their loop keeps
alive in float16: a forward pass, the sum of the logits, a backward pass, and until the next forward
pass returns the outputs. The printed figure has two workspaces of cuBLAS besides.
"""

# mypy: disable-error-code="no-untyped-call"

import csv
import sys
from pathlib import Path

import torch
from networks import NETWORKS
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.modeling_attn_mask_utils import AttentionMaskConverter

from onnxmem.runtimes.torch.cuda import WORKSPACE_BYTES
from onnxmem.torch.cuda_like import cuda_like
from onnxmem.torch.live_bytes import Counting, LiveBytes

DATA = Path(__file__).with_name("steps.csv")


def printed_mib(network: str, batch: int, sequence: int) -> float:
    """The figure that was published."""
    with DATA.open(encoding="utf-8", newline="") as file:
        wanted = (network, str(batch), str(sequence))
        return next(
            float(row["mib"])
            for row in csv.DictReader(file)
            if (row["network"], row["batch"], row["seq"]) == wanted
        )


def counted_bytes(network: str, batch: int, sequence: int) -> int:
    """The peak of the second step, when the outputs of the first are there."""
    # A mask of ones is none, and layers are dropped by chance: both ask for values, which tensors
    # without data do not have.
    AttentionMaskConverter._ignore_causal_mask_sdpa = staticmethod(lambda *_, **__: True)  # noqa: SLF001
    torch.rand = lambda *_, **__: 1.0
    live = LiveBytes()
    counting = Counting(live)
    with FakeTensorMode(), cuda_like("fused"):
        torch.set_default_dtype(torch.float16)  # as `from_pretrained` does
        model = NETWORKS[network].build().train().model
        torch.set_default_dtype(torch.float32)
        tokens = torch.ones(batch, sequence, dtype=torch.long)
        with counting:
            for tensor in (*model.parameters(), *model.buffers(), tokens):
                live.add(tensor)
            for _ in range(2):
                model.zero_grad(set_to_none=True)
                outputs = model(input_ids=tokens)
                loss = outputs.logits.sum()
                counting.engine.watch(loss)
                loss.backward()
    return live.peak_bytes


if __name__ == "__main__":
    asked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    counted_mib = (counted_bytes(*asked) + 2 * WORKSPACE_BYTES) / 2**20
    seen_mib = printed_mib(*asked)
    error = 100 * (counted_mib / seen_mib - 1)
    print(*asked, f"{seen_mib:.1f} MiB printed, {counted_mib:.1f} counted: {error:+.2f} %")
