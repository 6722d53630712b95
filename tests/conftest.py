"""Hypothesis draws the same examples at every run of CI, and new ones elsewhere.

Reports have as many columns as where there is no terminal.
"""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "explore")
os.environ["COLUMNS"] = "100"
