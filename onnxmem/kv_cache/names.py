"""What the name of a tensor says: that it is a cache, of which layer, and which output is its next.

Names as exporters write them: ``past_key_values.3.key`` and ``present.3.key`` (Optimum,
onnxruntime-genai), ``past_key_values.3.encoder.value`` (encoder and decoder), ``past_3`` and
``present_3`` (GPT-2's keys and values in one), ``past_key_self_3`` (onnxruntime's tools),
``past_key_values.3.conv_state`` or ``past_conv.3`` (convolutions and recurrences). A name is read
as words; those that say past or present are put aside, and what is left pairs an input with its
output.
"""

import re
from dataclasses import dataclass
from typing import Final

from onnxmem.kv_cache.holds import Holds

_WORD: Final = re.compile(r"[a-z]+|[0-9]+")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BOTH_WORDS: Final = re.compile(r"key[_. ]?values?(?=[^a-z]|$)")

_PAST: Final = frozenset({"past", "cache", "caches", "kv", "pkv", "prev", "previous"})
_STATES: Final = frozenset({"state", "states"})
_RECURRENT: Final = frozenset({"conv", "ssm", "recurrent", "rnn", "mamba", "rwkv", "wkv"})
_PRESENT: Final = frozenset({"present", "new", "next", "updated", "out", "output", "outputs"})
_MARKS: Final = _PAST | _STATES | _PRESENT
_ASIDE: Final = _MARKS | {"in", "input", "inputs", "cur", "current"}
_ENCODER: Final = frozenset({"encoder", "cross"})
_SHORT: Final = {"k": "key", "v": "value", "keys": "key", "values": "value", "scales": "scale"}


@dataclass(frozen=True, slots=True)
class Label:
    """What a name says."""

    words: tuple[str, ...]
    """But for those that say past or present."""
    is_past: bool
    is_state: bool
    """A convolution's or a recurrence's."""
    is_marked: bool
    """Whether it says past, present or state at all."""

    @property
    def layer(self) -> int | None:
        """The first number."""
        return next((int(word) for word in self.words if word.isdigit()), None)

    @property
    def is_encoders(self) -> bool:
        """Whether it is of the encoder's tokens."""
        return bool(_ENCODER & {*self.words})

    @property
    def holds(self) -> Holds:
        """Keys, values, scales, a state, or no word of it."""
        if self.is_state:
            return Holds.STATE
        words = {*self.words}
        if "scale" in words:
            return Holds.SCALES
        if ("key" in words) == ("value" in words):
            return Holds.UNKNOWN
        return Holds.KEYS if "key" in words else Holds.VALUES

    @property
    def suggests_cache(self) -> bool:
        """Whether it is named as a cache is: past, and keys, values, a state or a number."""
        return self.is_past and (self.holds is not Holds.UNKNOWN or self.layer is not None)


def label_of(name: str) -> Label:
    """Read a name.

    >>> label_of("past_key_values.3.key").words
    ('3', 'key')
    """
    text = _BOTH_WORDS.sub(" kv ", _CAMEL.sub(" ", name[:200]).lower())
    words = [_SHORT.get(word, word) for word in _WORD.findall(text)]
    found = {*words}
    is_recurrent = bool(found & _RECURRENT)
    return Label(
        tuple(word for word in words if word not in _ASIDE),
        bool(found & _PAST) or (is_recurrent and bool(found & _STATES)),
        is_recurrent and bool(found & _MARKS),
        bool(found & _MARKS),
    )
