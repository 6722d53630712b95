"""What a model may run on: memory, bandwidth and arithmetic peaks, each with its source."""

from onnxmem.devices.catalogue import Catalogue, catalogue
from onnxmem.devices.device import KINDS, Device, DeviceError

__all__ = ["KINDS", "Catalogue", "Device", "DeviceError", "catalogue"]
