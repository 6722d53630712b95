"""MurmurHash3 of 128 bits, as 32-bit machines compute it.

Source: Austin Appleby's MurmurHash3_x86_128, in the public domain; onnxruntime has it in
``core/framework/murmurhash3.cc``.
"""

from collections.abc import Sequence
from typing import Final

_MASK: Final = 0xFFFF_FFFF
_BLOCK_BYTES: Final = 16
_FACTORS: Final = (0x239B961B, 0xAB0E9789, 0x38B34AE5, 0xA1E38B93)
_TURNS: Final = (15, 16, 17, 18)
_LANE_TURNS: Final = (19, 17, 15, 13)
_ADDENDS: Final = (0x561CCD1B, 0x0BCAA747, 0x96CD1C35, 0x32AC3B17)


def murmur3_x86_128(data: bytes, seed: int) -> tuple[int, ...]:
    """Hash bytes: four numbers of 32 bits, the first the lowest."""
    lanes = [seed] * 4
    body = len(data) // _BLOCK_BYTES * _BLOCK_BYTES
    for start in range(0, body, _BLOCK_BYTES):
        for lane in range(4):
            lanes[lane] ^= _mixed(_word(data, start, lane), lane)
            turned = _turned(lanes[lane], _LANE_TURNS[lane])
            lanes[lane] = ((turned + lanes[(lane + 1) % 4]) * 5 + _ADDENDS[lane]) & _MASK
    for lane in range(4):
        lanes[lane] ^= _mixed(_word(data, body, lane), lane) ^ len(data)
    return _summed([_avalanche(value) for value in _summed(lanes)])


def _word(data: bytes, start: int, lane: int) -> int:
    """Four bytes, or what is left of them: none is 0, which changes nothing."""
    place = start + 4 * lane
    return int.from_bytes(data[place : place + 4], "little")


def _mixed(word: int, lane: int) -> int:
    turned = _turned(word * _FACTORS[lane] & _MASK, _TURNS[lane])
    return turned * _FACTORS[(lane + 1) % 4] & _MASK


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def _summed(lanes: Sequence[int]) -> tuple[int, ...]:
    """The first lane takes the sum of all, then each other one takes the first."""
    first = sum(lanes) & _MASK
    return (first, *((first + lane) & _MASK for lane in lanes[1:]))


def _avalanche(value: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value ^= value >> shift
        value = value * factor & _MASK
    return value ^ value >> 16
