"""TODO."""

from onnxmem.ops.spec import OpSpec

OPS: tuple[OpSpec, ...] = ()
