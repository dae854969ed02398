"""What errors say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ptxgen.errors import LaunchError


def refusal(call: Callable[..., Any], *args: Any, error: type[Exception] = LaunchError, **how: Any) -> str:
    """The message of the error that a call raises."""
    with pytest.raises(error) as caught:
        call(*args, **how)
    return str(caught.value)
