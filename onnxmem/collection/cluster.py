"""A dask.distributed cluster as an executor; dask is imported when it is asked for."""

import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from onnxmem.errors import UsageError, shortened

_RETRIES: Final = 2
"""Of a task that raised; one whose worker died is begun again by the scheduler anyway, as often as
``distributed.scheduler.allowed-failures`` says."""
_TIMEOUT: Final = "10s"
"""To reach the scheduler."""


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The cluster behind a scheduler's address, as an executor.

    Tasks are not ``pure``: two that look alike are two, for a file may change between them. The
    workers have onnxmem installed, and see the models under the same paths.

    :raises UsageError: dask is not installed, or no scheduler answers.
    """
    try:
        distributed = import_module("distributed")
    except ImportError as fault:
        message = "--dask needs dask.distributed: pip install 'onnxmem[dask]'"
        raise UsageError(message) from fault
    # What it says of connections comes back as exceptions too.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as fault:
        reason = " ".join(str(fault).split())
        message = f"--dask {shortened(address)}: no scheduler answers: {shortened(reason)}"
        raise UsageError(message) from fault
    with client:
        yield client.get_executor(pure=False, retries=_RETRIES)
