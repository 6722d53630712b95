"""Where the tests, their data and the models lie."""

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
ROOT: Final = TESTS.parent
MODELS: Final = ROOT / "models"
DATA: Final = TESTS / "data"
