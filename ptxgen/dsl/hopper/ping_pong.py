"""Ping-pong (`k.ping_pong`): code that one warpgroup of a role runs at a time, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.dsl.hopper.role import LOG_WARPGROUP, WARPGROUP, Role
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.values import Value
from ptxgen.errors import ConfigError
from ptxgen.target import WARP_SIZE


class PingPong:
    """The order of the warpgroups of `role`: the first one runs first, and each runs as often as the others.
    As in FlashAttention-3, one of two warpgroups multiplies while the other computes exponentials.

    One warpgroup at a time runs the body of `with order.exclusive():`; `begin` comes before the first such
    `with`, `end` after the last. A warpgroup has a named barrier, numbered from `first` on, at which the
    warpgroup before it arrives.
    """

    def __init__(self, k: Roles, role: Role, first: int) -> None:
        self._k = k
        self._role = role
        self._first = first
        self._threads = 2 * WARPGROUP * WARP_SIZE
        self._mine: Value | None = None
        self._next: Value | None = None

    def begin(self) -> None:
        """Let the first warpgroup run: the last one arrives at its barrier."""
        self._require("begin")
        k, last = self._k, self._first + self._role.warpgroups - 1
        first_warp = self._role.first // WARPGROUP
        self._mine = (k.warp_index >> LOG_WARPGROUP) + (self._first - first_warp)
        self._next = k.selp(self._first, self._mine + 1, self._mine == last)
        with k.when(self._mine == last):
            k.bar_arrive(self._first, self._threads)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait for the warpgroup before this one; at the end of the body, let the next one run."""
        mine, following = self._begun("exclusive")
        self._k.bar_sync(mine, self._threads)
        yield
        self._k.bar_arrive(following, self._threads)

    def end(self) -> None:
        """Wait at the first warpgroup's barrier, so that no arrival is left."""
        mine, _ = self._begun("end")
        with self._k.when(mine == self._first):
            self._k.bar_sync(self._first, self._threads)

    def _begun(self, what: str) -> tuple[Value, Value]:
        """The barriers of this warpgroup and of the next one, after a check of the call `what`."""
        self._require(what)
        if self._mine is None or self._next is None:
            raise ConfigError(
                f"ping_pong.{what} is used before ping_pong.begin(), which lets the first warpgroup run"
            )
        return self._mine, self._next

    def _require(self, what: str) -> None:
        self._k.require_whole_role(f"ping_pong.{what}", self._role)
