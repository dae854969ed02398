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


def outcome(call: Callable[[], object]) -> str:
    """The kind and text of the error of a call, if there is one."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"
