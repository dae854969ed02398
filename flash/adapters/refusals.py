"""Errors of functions that replace those of another library."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from ptxgen.errors import ConfigError, LaunchError, PtxGenError, UnsupportedTargetError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class RefusedCallError(LaunchError, RuntimeError):
    """`LaunchError`, and what PyTorch and flash-attn raise for arguments that they do not take."""


class RefusedConfigError(ConfigError, RuntimeError):
    """`ConfigError`, and what PyTorch and flash-attn raise for sizes that no kernel has."""


class RefusedTargetError(UnsupportedTargetError, RuntimeError):
    """`UnsupportedTargetError`, and what PyTorch and flash-attn raise for a GPU that is too old."""


_ALSO_RUNTIME: Final[tuple[tuple[type[PtxGenError], type[PtxGenError]], ...]] = (
    (LaunchError, RefusedCallError),
    (ConfigError, RefusedConfigError),
    (UnsupportedTargetError, RefusedTargetError),
)


def refuses_as_peers(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """`function`, of which refusals are also RuntimeErrors, so that programs written for PyTorch or
    flash-attn, which have `except RuntimeError` around a call to compute it by other means, do so.
    """

    @functools.wraps(function)
    def called(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except (LaunchError, ConfigError, UnsupportedTargetError) as error:
            if isinstance(error, RuntimeError):
                raise
            raise _as_runtime_error(error) from error.__cause__

    return called


def _as_runtime_error(error: PtxGenError) -> PtxGenError:
    return next(also(str(error)) for usual, also in _ALSO_RUNTIME if isinstance(error, usual))
