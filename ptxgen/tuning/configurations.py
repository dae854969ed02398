"""The configurations of a kernel: values of its static parameters, and the threads of a CTA."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.kernels.signature import Signature, key_of

THREADS: Final = "threads"  # of a CTA, which a configuration may have besides static parameters
Configuration = Mapping[str, Any]


def configurations(
    signature: Signature, listed: Sequence[Mapping[str, Any]] | None, ranges: Mapping[str, Sequence[Any]]
) -> tuple[Configuration, ...]:
    """The configurations that an author offers: those `listed`, or the product of `ranges`, the last of
    which varies fastest. Raises `ConfigError` for none, for names that are no static parameters, and for
    equal ones.
    """
    caller = f"autotune of kernel {signature.name}"
    if (listed is None) == (not ranges):
        raise ConfigError(
            f"{caller}: give either a list of configurations, as in autotune([{{'block': 128}}]), or ranges "
            "of parameters, as in autotune(block=(64, 128))"
        )
    every = _product(caller, ranges) if listed is None else _listed(caller, listed)
    known = (*signature.statics, THREADS)
    for one in every:
        for name in one:
            if name not in known:
                statics = ", ".join(signature.statics) or "none"
                raise ConfigError(
                    f"{caller}: {name!r} is no keyword-only parameter of the kernel ({statics}) and not "
                    f"'{THREADS}'{did_you_mean(name, known)}"
                )
    seen = set[object]()
    for one in every:
        try:
            key = frozenset((name, key_of(value)) for name, value in one.items())
        except TypeError as error:
            raise ConfigError(f"{caller}: the values of {words(one)} must be hashable") from error
        if key in seen:
            raise ConfigError(f"{caller}: the configuration {words(one)} is there twice; remove one")
        seen.add(key)
    return every


def _listed(caller: str, listed: object) -> tuple[Configuration, ...]:
    every = tuple(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else ()
    if not every or not all(isinstance(one, Mapping) and one for one in every):
        raise ConfigError(
            f"{caller}: configurations must be a list of dicts, each with one value or more, got "
            f"{shown(listed)}"
        )
    return tuple([dict(one) for one in every])


def _product(caller: str, ranges: Mapping[str, object]) -> tuple[Configuration, ...]:
    for name, values in ranges.items():
        if not isinstance(values, tuple | list | range) or not values:
            raise ConfigError(
                f"{caller}: {name} must be a tuple, a list or a range of one value or more, got "
                f"{shown(values)}"
            )
    choices = itertools.product(*ranges.values())  # type: ignore[call-overload]
    return tuple([dict(zip(ranges, values, strict=True)) for values in choices])


def words(one: Configuration) -> str:
    """A configuration as text, such as `block=128, stages=3`."""
    return ", ".join(f"{name}={value!r}" for name, value in one.items())
