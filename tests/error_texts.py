"""What an error says, compared whole."""

from __future__ import annotations

import re
from typing import Any

import pytest


def refused(error: type[Exception] | tuple[type[Exception], ...], message: str) -> Any:
    """Expect the error with exactly this message."""
    return pytest.raises(error, match=rf"\A{re.escape(message)}\Z")
