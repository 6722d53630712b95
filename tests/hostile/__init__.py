"""Untrusted files, made when tests run: FIFOs and names of bytes cannot be kept.

A family a file, each a table of names and what makes them; ``ALL`` holds every one. The kinds are
those of SECURITY.md.
"""

from hostile.bombs import FILES as BOMBS
from hostile.broken_graphs import FILES as BROKEN_GRAPHS
from hostile.broken_operators import FILES as BROKEN_OPERATORS
from hostile.constants import FILES as CONSTANTS
from hostile.external_data import FILES as EXTERNAL_DATA
from hostile.functions import FILES as FUNCTIONS
from hostile.hostile_file import HostileFile
from hostile.names import FILES as NAMES
from hostile.not_models import FILES as NOT_MODELS
from hostile.numbers import FILES as NUMBERS
from hostile.odd_models import FILES as ODD_MODELS
from hostile.operands import FILES as OPERANDS
from hostile.special_files import FILES as SPECIAL_FILES
from hostile.subgraphs import FILES as SUBGRAPHS
from hostile.types import FILES as TYPES

__all__ = ["ALL", "HostileFile"]

ALL: tuple[HostileFile, ...] = (
    *NOT_MODELS,
    *SPECIAL_FILES,
    *EXTERNAL_DATA,
    *BROKEN_GRAPHS,
    *ODD_MODELS,
    *NUMBERS,
    *CONSTANTS,
    *BOMBS,
    *BROKEN_OPERATORS,
    *OPERANDS,
    *TYPES,
    *SUBGRAPHS,
    *FUNCTIONS,
    *NAMES,
)
