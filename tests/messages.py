"""The whole message of an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ptxgen.errors import LaunchError


def message(call: Callable[[], object], kind: type[BaseException] = LaunchError) -> str:
    """The message of the error of this kind that the call raises."""
    with pytest.raises(kind) as error:
        call()
    return str(error.value)
