"""PyTorch's memory snapshots: every version is read, and nothing in one is run."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_snapshots import (
    FRAMES,
    MIB,
    OTHER_STREAM,
    VERSIONS,
    Document,
    changed,
    document,
    segments,
    written,
)

from onnxmem.errors import MissingFileError
from onnxmem.measuring import memory_snapshot
from onnxmem.measuring.memory_snapshot import SnapshotError, read_memory_snapshot


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_has_the_same_memory(version: str, tmp_path: Path) -> None:
    found = read_memory_snapshot(written(tmp_path / "s.pickle", document(version)))
    assert [each.size_bytes for each in found.segments] == [2 * MIB, 20 * MIB, 18 * MIB, 2 * MIB]
    assert [each.is_small for each in found.segments] == [True, False, False, True]
    assert found.segments[3].stream == OTHER_STREAM
    assert len(found.events) == 18
    allocated = [each.size_bytes for each in found.events if each.action == "alloc"]
    assert allocated == [100, 3 * MIB, 18 * MIB, 5 * MIB, 2 * MIB, 700, 4, 2000]
    assert found.segments[0].blocks[2].is_active
    assert found.segments[0].blocks[2].requested_bytes == 2000
    assert not found.segments[0].blocks[3].is_active
    is_set = VERSIONS.index(version) >= VERSIONS.index("2.3")
    assert found.settings.get("max_split_size") == (-1 if is_set else None)
    assert {each.pool for each in found.events} == ({"0.0"} if version == "2.12" else {""})


def without_traces(content: Document) -> None:
    del content["device_traces"]


def without_frames(content: Document) -> None:
    for each in content["device_traces"][0]:
        del each["frames"]
    for each in content["segments"]:
        del each["frames"]
        for block in each["blocks"]:
            del block["frames"], block["address"], block["requested_size"]


def on_the_second_of_two_devices(content: Document) -> None:
    content["device_traces"].insert(0, [])
    for each in content["segments"]:
        each["device"] = 1


def test_the_innermost_function_of_the_user_is_the_place(tmp_path: Path) -> None:
    found = read_memory_snapshot(written(tmp_path / "s.pickle", document("2.6")))
    assert {each.place for each in found.events} == {"step (/home/user/train.py:31)"}
    inside = changed("2.6", lambda content: content.update(segments=segments()[:1]))
    for each in inside["device_traces"][0]:
        each["frames"] = FRAMES[:2]
    found = read_memory_snapshot(written(tmp_path / "s.pickle", inside))
    assert {each.place for each in found.events} == {
        "forward (/env/torch/nn/modules/linear.py:125)"
    }
    for each in inside["device_traces"][0]:
        each["frames"] = FRAMES[:1]
    found = read_memory_snapshot(written(tmp_path / "s.pickle", inside))
    assert {each.place for each in found.events} == {"c10::cuda::CUDACachingAllocator::malloc (??)"}


def test_a_snapshot_without_events_or_call_stacks_or_of_another_device_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.pickle"
    assert read_memory_snapshot(written(path, changed("2.3", without_traces))).events == ()
    bare = read_memory_snapshot(written(path, changed("2.1", without_frames)))
    assert {each.place for each in bare.events} == {""}
    # Blocks follow one another, and a request is as large as its block, where nothing else is said.
    first = bare.segments[0]
    assert [block.address - first.address for block in first.blocks] == [0, 512, 1024, 3072]
    assert first.blocks[0].requested_bytes == 512
    other = read_memory_snapshot(written(path, changed("2.7", on_the_second_of_two_devices)))
    assert (other.device, other.num_devices, len(other.events)) == (1, 1, 18)
    listed = read_memory_snapshot(written(path, segments()))  # torch.cuda.memory_snapshot()
    assert len(listed.segments) == 4


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_each_protocol_of_pickle_is_read(protocol: int, tmp_path: Path) -> None:
    path = written(tmp_path / "s.pickle", document("2.6"), protocol)
    assert len(read_memory_snapshot(path).events) == 18


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.folder,)


def test_nothing_in_a_snapshot_is_run(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    content = changed("2.6", lambda found: found.update(more=Runs(str(folder))))
    with pytest.raises(SnapshotError, match=r"s\.pickle: names posix\.mkdir: .* nothing is run"):
        read_memory_snapshot(written(tmp_path / "s.pickle", content))
    assert not folder.exists()


MEMO_BOMB = b"\x80\x04]r\xff\xff\xff\x7f."
"""Stores a list under a number for which CPython makes a table of 32 GiB."""
NO_PICKLE = r"s\.pickle: is not a memory snapshot of PyTorch: not a pickle, .* write one with torch"
MALFORMED: dict[str, tuple[object, str]] = {
    "empty file": (b"", NO_PICKLE),
    "text": (b"hello", NO_PICKLE),
    "a model": (b"\x08\x08\x12\x07pytorchh\x69\x85", NO_PICKLE),
    "a memo that lacks a value": (b"h\x69.", NO_PICKLE),
    "cut off": (pickle.dumps(document("2.6"))[:-300], NO_PICKLE),
    "memo": (MEMO_BOMB, "needs too much memory to be read"),
    "persistent": (b"\x80\x04\x8c\x01xQ.", "refers to an object outside of the file"),
    "a number": (pickle.dumps(3), "it has no segments"),
    "no segments": (pickle.dumps({}), "it has no segments"),
    "segments": (pickle.dumps({"segments": 3}), "segments is not a list"),
    "a segment": (pickle.dumps({"segments": [3]}), "an item of segments is not a dict"),
    "a size": (
        pickle.dumps({"segments": [{"address": 0, "total_size": 2.5}]}),
        "total_size is not a number of bytes",
    ),
    "a huge size": (
        pickle.dumps({"segments": [{"address": 0, "total_size": 10**300}]}),
        "total_size is not a number of bytes",
    ),
    "below 0": (
        pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": -1}]]}),
        "size is not a number of bytes",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_no_snapshot_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    content, reason = MALFORMED[case]
    path = tmp_path / "s.pickle"
    assert isinstance(content, bytes)
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=reason) as raised:
        read_memory_snapshot(str(path))
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_list_that_is_there_a_million_times_is_refused(tmp_path: Path) -> None:
    """A pickle names a list again in three bytes: 10,000 x 10,000 events in 200 KB."""
    one = {"action": "alloc", "addr": 0, "size": 1}
    content = {"segments": [], "device_traces": [[one] * 10_000] * 10_000}
    with pytest.raises(SnapshotError, match="has more device_traces than bytes"):
        read_memory_snapshot(written(tmp_path / "s.pickle", content))


def test_a_missing_or_a_huge_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "snap.pickle", document("2.6"))
    with pytest.raises(MissingFileError, match=r"did you mean .*snap\.pickle"):
        read_memory_snapshot(str(tmp_path / "snapp.pickle"))
    with pytest.raises(MissingFileError, match="a directory is there"):
        read_memory_snapshot(str(tmp_path))
    monkeypatch.setattr(memory_snapshot, "MOST_BYTES", 100)
    with pytest.raises(SnapshotError, match="is over 100 bytes; record fewer events"):
        read_memory_snapshot(path)
