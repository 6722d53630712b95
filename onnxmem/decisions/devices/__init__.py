"""What a model may run on: memory, bandwidth and arithmetic peaks, each with its source.

The catalogue is read where one is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.decisions.devices.device import KINDS, Device, DeviceError
    from onnxmem.decisions.devices.reading import Catalogue, catalogue

__all__ = ["KINDS", "Catalogue", "Device", "DeviceError", "catalogue"]

__getattr__ = late(
    __name__,
    {
        "onnxmem.decisions.devices.reading": ("Catalogue", "catalogue"),
        "onnxmem.decisions.devices.device": ("KINDS", "Device", "DeviceError"),
    },
)
