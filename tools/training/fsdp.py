"""Count a rank's step under ``fully_shard`` by PyTorch's own tracker, beside the prediction.

python tools/training/fsdp.py      # to tests/data/training/fsdp.json, without a GPU

Each repeated block is a unit, and the network around them another, as in PyTorch's tutorial of
FSDP2. ``torch.distributed._tools.fsdp2_mem_tracker`` follows all storages of a rank on fake
tensors; the other ranks exist in name alone.
"""

# mypy: disable-error-code="no-untyped-call"

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from blocks import GIVEN
from given import NETWORKS
from settings import Network
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from onnxmem.torch.cuda_like import cuda_like
from onnxmem.torch.measuring import loss_of, target_of

TRUTH = Path(__file__).parents[2] / "tests" / "data" / "training" / "fsdp.json"
WORLD = 4
CLASSES = {**GIVEN, "gpt2_small": "Block"}


def row(network: Network, batch: int, class_name: str) -> dict[str, Any]:
    """Bytes at the peak of the second step with Adam, by the tracker's categories."""
    mesh = init_device_mesh("cpu", (WORLD,))
    with FakeTensorMode(), cuda_like("math"):
        module = network.build().train()
        inputs = network.inputs(batch)
        with torch.no_grad():
            target = target_of(module(*inputs), network.loss)
        for inner in list(module.modules()):
            if type(inner).__name__ == class_name:
                fully_shard(inner, mesh=mesh)
        fully_shard(module, mesh=mesh)
        optimizer = torch.optim.Adam(module.parameters(), foreach=False)
        tracker = FSDPMemTracker(module, optimizer)
        tracker.track_inputs((*inputs, target))
        with tracker:
            for _ in range(2):
                optimizer.zero_grad()
                logits = module(*inputs)
                loss = loss_of(logits, target, network.loss)
                loss.backward()
                optimizer.step()
                tracker.reset_mod_stats()
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    found = {getattr(key, "value", key): size for key, size in peak.items() if size}
    return {"model": network.name, "batch": batch, "world": WORLD, **found}


def main() -> None:
    """Write the rows of all networks whose blocks are known."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    rows = [
        row(network, batch, CLASSES[network.name])
        for network in NETWORKS
        if network.name in CLASSES
        for batch in network.batches
    ]
    TRUTH.write_text("".join(f"{json.dumps(each)}\n" for each in rows))


if __name__ == "__main__":
    main()
