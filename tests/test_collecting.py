"""The collector waits while records are made, and goes on as before."""

import gc
import weakref

import pytest

from onnxmem.collecting import made_to_last, without_collection


class Knot:
    """A cycle."""

    def __init__(self) -> None:
        self.knot = self


def test_the_collector_waits_and_goes_on() -> None:
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled()
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_fault_lets_it_go_on() -> None:
    with pytest.raises(ValueError, match="fault"), without_collection():
        raise ValueError("fault")  # noqa: EM101
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_made_to_last_is_never_collected() -> None:
    with made_to_last():
        lasting = weakref.ref(Knot())
    passing = weakref.ref(Knot())
    gc.collect()
    assert gc.isenabled()
    assert lasting() is not None
    assert passing() is None
    gc.unfreeze()
    gc.collect()
    assert lasting() is None
