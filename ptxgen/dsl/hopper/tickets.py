"""Tickets (`k.tile_scheduler(..., order="ticket")`): a CTA takes the next tile when it is done with one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ptxgen.dsl.blocks import block
from ptxgen.dsl.hopper.role import Role
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.values import Pointer, Value, Var
from ptxgen.errors import ConfigError
from ptxgen.ir import Origin
from ptxgen.target import WARP_SIZE
from ptxgen.types import u32

_STAGES: Final = 2  # numbers that are written, but not yet read by all
_REGION: Final = "k.tickets"  # no tile of the kernel's author can have this name
_UNBROKEN: Final = (
    "scheduler.tiles with tickets, but the counter returns to 0 only if each CTA asks for a tile until there "
    "is none; put the rest of the body into 'with k.when(condition, uniform=True)'"
)


class TicketScheduler:
    """Deals the tiles 0 … `count` - 1 of the work to the CTAs of a launch along x, each to the first CTA that
    asks: one thread takes the next number from `counter`, a u32 in global memory, and passes it to the
    others.

    With `roles`, the first thread of the first of them takes numbers, one tile ahead of the others, and full
    and empty stages are named barriers, as in FlashAttention-3's dynamic scheduler: the taker arrives at the
    full one when a number is there, the others at the empty one when they have read it. Without roles, a
    barrier of all threads separates the tiles.

    `counter` is 0 before a launch and, since each CTA takes one number that is no tile, 0 again after the
    last one: `atom.inc` wraps there. Launches with one counter follow each other. `number` is the index of
    this scheduler in its kernel: each has separate shared words and a separate counter.
    """

    def __init__(
        self, k: Roles, count: Value, counter: Pointer, roles: Sequence[Role], number: int = 0
    ) -> None:
        self.k = k
        self.count = count
        self.counter = counter
        self.roles = tuple(roles)
        self.account = k.account
        self._words = k.scratch(_STAGES, u32, f"{_REGION}{number or ''}")
        self._threads = sum(role.threads for role in roles)
        self._full = k.take_barriers("tile_scheduler", 2 * _STAGES) if roles else 0
        self._empty = self._full + _STAGES
        self._entered: list[Role | None] = []

    def origin(self) -> Origin:
        """The line of the kernel's Python source that is being executed, with its file."""
        return self.k.origin()

    @block
    def tiles(self) -> Iterator[Value]:
        """Run the body for each tile that this CTA takes; its number, u32, is below `count`.

        All threads of the role, or outside of roles of the CTA, must come here, and once; the body may
        hold their barriers. Raises `ConfigError` for a second time, inside a loop, and for a role that is
        not one of the scheduler's, and `TypeMismatchError` in a block that some threads may not run.
        """
        k, role = self.k, self.k.present_role
        k.require_present("scheduler.tiles")
        if role not in (self.roles or (None,)):
            names = " and ".join(repr(one.name) for one in self.roles)
            wanted = f"in the roles {names}" if self.roles else "outside of roles"
            raise ConfigError(
                f"scheduler.tiles must be entered {wanted}, but is "
                f"{f'in the role {role.name!r}' if role else 'outside of roles'}; give tile_scheduler "
                "the roles that come here: roles=(producer, consumer)"
            )
        if role in self._entered:
            raise ConfigError(
                "scheduler.tiles with tickets is entered twice, but each CTA asks for a tile until there is "
                "none; put both bodies into one"
            )
        if k.innermost_loop:
            raise ConfigError(
                f"scheduler.tiles with tickets must be outside of loops, but is inside {k.innermost_loop!r}: "
                "each CTA asks for a tile until there is none, which it can do once; put the loop into the "
                "body of scheduler.tiles, or let the tiles be those of all rounds together"
            )
        self._entered.append(role)
        stage = k.var(u32, 0)
        numbers: list[Value] = []
        ask: Callable[[Var], Value] = self._among_all
        if role is not None:
            ask = self._taken if role is self.roles[0] else self._received
            if role is not self.roles[0]:
                for number in range(_STAGES):
                    k.bar_arrive(self._empty + number, self._threads)

        def is_tile() -> Value:
            numbers.append(ask(stage))
            stage.set(stage ^ 1)
            return numbers[0] < self.count

        with k.while_(is_tile, uniform=True):
            k.refuse_breaks(_UNBROKEN)
            # The body runs below the count anyway; the minimum shows it to analyses of the body alone.
            yield k.min(numbers[0], self.count - 1)
        if role is not None and role is self.roles[0]:
            for _ in range(_STAGES):  # no arrival is left
                k.bar_sync(self._empty + stage, self._threads)
                stage.set(stage ^ 1)

    def _word(self, stage: Var) -> Pointer:
        """The pointer to the tile number in a stage, in shared memory."""
        words = self._words
        return Pointer(self.k.mad(stage, u32.nbytes, words.value, mode="lo"), "shared", u32, words.offset)

    def _take(self, stage: Var) -> Pointer:
        """Have the first thread of the role, or of the CTA, take the next number; returns the pointer to
        which it is written.
        """
        k = self.k
        at = self._word(stage)
        last = self.count + (k.blocks() - 1)
        first = k.present_role.first * WARP_SIZE if k.present_role else 0
        with k.only_if(k.thread_index() == first):
            taken = k.atom(self.counter, last, space="global", op="inc", type=u32)
            k.store(at, taken)
        return at

    def _among_all(self, stage: Var) -> Value:
        """The next number, in a CTA without roles. A thread that reads a number has read the previous one, so
        the other stage is free when all threads have arrived at the barrier.
        """
        at = self._take(stage)
        self.k.barrier()
        return self.k.load(at)

    def _taken(self, stage: Var) -> Value:
        """The next tile number (ticket), in the role that takes it from the counter."""
        k, role = self.k, self.roles[0]
        k.bar_sync(self._empty + stage, self._threads)
        at = self._take(stage)
        k.bar_arrive(self._full + stage, self._threads)
        role.barrier.sync()
        return k.load(at)

    def _received(self, stage: Var) -> Value:
        """The next tile number (ticket), in a role that receives it through shared memory."""
        k = self.k
        k.bar_sync(self._full + stage, self._threads)
        number = k.load(self._word(stage))
        k.bar_arrive(self._empty + stage, self._threads)
        return number
