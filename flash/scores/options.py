"""Checks and parsers that the settings of several features share."""

from __future__ import annotations

import argparse
import importlib
import runpy
from collections.abc import Callable
from typing import Any, Final

from flash.operands.dtypes import DTYPES, F32, config_name
from ptxgen.arguments import is_one_of
from ptxgen.arguments import number as number_of
from ptxgen.errors import ConfigError, did_you_mean, shown

# The kernel's scale is softmax_scale * log2(e) in f32, which must not overflow.
MAX_SCALE: Final = 2.0**127
SCALES: Final = f"a number of at most {MAX_SCALE:g} either way"  # for messages


def is_scale(value: object) -> bool:
    """Whether a kernel can multiply by `value`: a number of any class that is finite in f32 and in
    units of log2.
    """
    result = number_of(value)
    return result is not None and abs(result) <= MAX_SCALE


def require_one_of(name: str, value: Any, legal: tuple[Any, ...], hint: Callable[[], str] = str) -> None:
    """Raise `ConfigError` if a setting is none of the legal values."""
    if not is_one_of(value, legal):
        words = ", ".join(map(repr, legal))
        meant = did_you_mean(value, [choice for choice in legal if isinstance(choice, str)])
        raise ConfigError(
            f"AttentionConfig: {name} must be one of {words}, got {shown(value)}{meant or hint()}"
        )


def flag(name: str, value: Any) -> bool:
    """A setting that is True or False. Raises `ConfigError` for anything else."""
    if not isinstance(value, bool):
        raise ConfigError(f"AttentionConfig: {name} must be True or False, got {shown(value)}")
    return value


def type_of_array(name: str, value: Any, dtype: str) -> str | None:
    """The type of an array that is f32 or of the type `dtype` of Q, or None for no array. Raises
    `ConfigError` for anything else.
    """
    named: Any = config_name(value)
    require_one_of(name, named, (*dict.fromkeys((F32.name, dtype if dtype in DTYPES else F32.name)), None))
    return None if named is None else str(named)


def number(text: str) -> int | float:
    """An int or a float from the command line; the config checks its range."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(f"must be a number, got {text!r}")


def function(text: str) -> Callable[..., Any]:
    """A function from the command line: MODULE:NAME, or FILE.py:NAME."""
    module, _, name = text.rpartition(":")
    try:
        if module.endswith(".py"):
            result: Any = runpy.run_path(module)[name]
        else:
            result = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, KeyError, OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            f"must be MODULE:FUNCTION or FILE.py:FUNCTION, got {text!r}: {error}"
        ) from None
    if not callable(result):
        raise argparse.ArgumentTypeError(f"must name a function, got {text!r}")
    checked: Callable[..., Any] = result
    return checked


def arrays(text: str) -> dict[str, tuple[str, int]]:
    """Declarations of arrays from the command line, NAME:TYPE:AXES, separated by commas."""
    result = {}
    for one in text.split(","):
        name, *rest = one.split(":")
        if len(rest) != 2 or not rest[1].isdigit():
            raise argparse.ArgumentTypeError(f"must be NAME:TYPE:AXES such as slopes:f32:1, got {one!r}")
        result[name] = rest[0], int(rest[1])
    return result
