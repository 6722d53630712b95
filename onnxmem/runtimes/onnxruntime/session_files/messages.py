"""What onnxruntime says of a fault, without what tells its reader nothing."""

import re
from typing import Final

_NOISE: Final = re.compile(
    r"(\w+: )?\[ONNXRuntimeError\] : \d+ : \w+ : "  # the kind of the fault, two times
    r"|/\S+\.(cc|h):\d+ [^()]*\([^()]*\) "  # the place in its source
)


def without_noise(message: str) -> str:
    """The fault alone."""
    return _NOISE.sub("", message)
