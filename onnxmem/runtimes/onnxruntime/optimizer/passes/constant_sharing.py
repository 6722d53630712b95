"""Equal small constants become one, so that nodes that read them can be equal too.

Source: onnxruntime/core/optimizer/constant_sharing.cc. Which of the equal ones stays follows a hash
table there; here it is the first.
"""

from collections.abc import Hashable

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph

_MAX_ELEMENTS = 8
_SHARED_TYPES = frozenset({10, 1, 11, 6, 7})
"""float16, float, double, int32 and int64."""


def share_constants(graph: Graph) -> bool:
    """Replace repeated constants of up to eight elements; subgraphs are left alone."""
    first: dict[Hashable, str] = {}
    changed = False
    for name in [name for name in graph.initializers if _may_be_shared(graph, name)]:
        value = graph.array(name)
        if value is None:
            continue
        key = (value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        kept = first.setdefault(key, name)
        if kept != name:
            for reader in graph.readers(name):
                inputs = [kept if read == name else read for read in reader.inputs]
                graph.set_inputs(reader, inputs)
            graph.drop_initializer(name)
            changed = True
    return changed


def _may_be_shared(graph: Graph, name: str) -> bool:
    tensor = graph.constant(name)
    if tensor is None or name in graph.outputs or tensor.data_type not in _SHARED_TYPES:
        return False
    size = int(np.prod(tensor.dims, dtype=np.int64))
    readers = graph.readers(name)
    is_read_inside = any(name in reader.implicit for reader in readers)
    return bool(readers) and 0 < size <= _MAX_ELEMENTS and not is_read_inside
