"""What runs a launch plan: the `Backend` protocol and the names a user may give."""

from __future__ import annotations

from typing import Protocol

from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.runtime.plan import LaunchPlan
from ptxgen.runtime.settings import AUTO, BACKENDS
from ptxgen.target import Target


class Backend(Protocol):
    """Turns PTX text into a program and runs it; a program is bytes, so that it can be cached."""

    @property
    def name(self) -> str:
        """One of `BACKENDS`."""

    def why_unavailable(self) -> str:
        """Why nothing can run here; empty if it can. Found out once, then remembered."""

    def version(self, target: Target) -> str:
        """What `compile` compiles with, and its version: part of a cached program's key."""

    def compile(self, text: str, target: Target) -> bytes:
        """The program of PTX `text` for `target`; the same text gives the same bytes.

        Raises `AssemblerError` if the text is refused, `BackendError` if compiling itself fails.
        """

    def run(self, program: bytes, plan: LaunchPlan) -> None:
        """Do `plan` with `program`; pointers among its values are addresses of this backend.

        Raises `LaunchError` for what does not fit the device, `TrapError` or `BackendError` for a
        launch that failed.
        """


def check_backend(name: object, who: str = "") -> str:
    """`name` if it is `auto` or one of `BACKENDS`; raises `ConfigError` otherwise, which says `who`
    was called with it.
    """
    known = (AUTO, *BACKENDS)
    if not isinstance(name, str) or name not in known:
        hint = did_you_mean(name, known)
        prefix = f"{who}: " if who else ""
        raise ConfigError(
            f"{prefix}backend must be one of {', '.join(known)}, got {shown(name)}{hint}"
        )
    return name
