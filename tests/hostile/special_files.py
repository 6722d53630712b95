"""What a path may name that is no file of bytes to read."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hostile.hostile_file import ANALYZED, HostileFile
from hostile.not_models import whole

NO_FILE = frozenset({"model_file", "missing_file"})
LARGE_BYTES: Final = 3 * 2**30


def fifo(path: Path) -> None:
    """Make a pipe without a writer."""
    os.mkfifo(path)


def linked(target: str) -> Callable[[Path], None]:
    """Make a symbolic link."""
    return lambda path: path.symlink_to(target)


def loop(path: Path) -> None:
    """Make a link to itself."""
    path.symlink_to(path.name)


def link_to_fifo(path: Path) -> None:
    """Make a link to a pipe without a writer."""
    pipe = path.with_suffix(".pipe")
    os.mkfifo(pipe)
    path.symlink_to(pipe.name)


def forbidden(path: Path) -> None:
    """Make a file that only root may read."""
    path.write_bytes(whole())
    path.chmod(0)


def unix_socket(path: Path) -> None:
    """Make a socket; by a short address, because the folder's name can be too long for one."""
    back = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("s")
    finally:
        os.chdir(back)
    path.with_name("s").rename(path)


def empty_folder(path: Path) -> None:
    """Make a folder with a model's name."""
    path.mkdir()


def hole(path: Path) -> None:
    """Make 3 GiB of zeros that take no space on the disk."""
    path.touch()
    os.truncate(path, LARGE_BYTES)


def large_weight(size_bytes: int) -> Callable[[Path], None]:
    """Append one float weight of zeros, which takes no space on the disk, to the sound model."""

    def write(path: Path) -> None:
        header = b"\x08" + _varint(size_bytes // 4) + b"\x10\x01\x42\x05large" + b"\x4a"
        tensor = len(header) + len(_varint(size_bytes)) + size_bytes
        graph = b"\x2a" + _varint(tensor)
        data = b"\x3a" + _varint(len(graph) + tensor) + graph + header + _varint(size_bytes)
        path.write_bytes(whole() + data)
        os.truncate(path, len(whole()) + len(data) + size_bytes)

    return write


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def special(name: str, write: Callable[[Path], None], ends: frozenset[str]) -> HostileFile:
    """Name one of this family."""
    return HostileFile("special", name, write, ends)


FILES: Final = (
    special("fifo", fifo, NO_FILE),
    special("link to a fifo", link_to_fifo, NO_FILE),
    special("link to dev zero", linked("/dev/zero"), NO_FILE),
    special("link to dev random", linked("/dev/random"), NO_FILE),
    special("link to dev full", linked("/dev/full"), NO_FILE),
    special("link to proc mem", linked("/proc/self/mem"), NO_FILE),
    special("link to a folder", linked("/proc"), NO_FILE | {"usage"}),
    special("link to itself", loop, NO_FILE),
    special("dangling link", linked("nowhere.onnx"), NO_FILE),
    special("mode 000", forbidden, NO_FILE | ANALYZED),
    special("socket", unix_socket, NO_FILE),
    special("folder", empty_folder, NO_FILE | {"usage"}),
    special("3 GiB of nothing", hole, NO_FILE),
    special("weight of 1.9 GiB", large_weight(19 * 2**30 // 10 // 4 * 4), ANALYZED),
    special("weight of 3 GiB", large_weight(LARGE_BYTES), ANALYZED),
)
