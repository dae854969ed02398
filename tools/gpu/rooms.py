"""Folders of the checkout that processes of a session import from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = ROOT / "tests"


def with_tests() -> None:
    """Let modules of `tests` be imported by their names, as `pythonpath` of pyproject.toml does."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
