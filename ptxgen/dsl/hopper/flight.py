"""Keeps track of the groups of `wgmma` in flight, as far as they are known while a kernel is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Final, NamedTuple

from ptxgen.errors import TypeMismatchError
from ptxgen.ir import Origin
from ptxgen.records import dataclass


@dataclass(eq=False)
class Group:
    """Products that were committed together: their accumulators, the owners of the shared memory of
    their operands, and the line that started the first.
    """

    origin: Origin
    accumulators: list[Any] = field(default_factory=list)
    operands: list[object] = field(default_factory=list)


class _Event(NamedTuple):
    """A step in the order of the kernel's text: a group that begins, a wait for all but `pending`
    groups, or a touch of an accumulator or an operand, which may only be `written`.
    """

    group: Group | None = None
    pending: int | None = None
    touched: Any = None
    origin: Origin | None = None
    written: bool = False


_NOTHING: Final = _Event()


class Flight:
    """The groups of products in flight, newest last.

    A loop is replayed at its end: groups in flight there are in flight at its beginning, too.
    """

    def __init__(self) -> None:
        self._under_way: list[Group] = []
        self._open: Group | None = None
        self._events: list[_Event] = []
        self._last = _NOTHING  # the last event, unless something else has happened since
        self._left: list[Group] = []  # under way where the code of a role ends

    @property
    def is_open(self) -> bool:
        """Whether a group of `wgmma` products has begun and is not committed."""
        return self._open is not None

    @contextmanager
    def group(self, k: Any) -> Iterator[None]:
        """Emit a fence, the products of the body, and a commit; inside an open group the products alone."""
        if self._open is not None:
            yield
            return
        k.wgmma_fence()
        group = self._open = Group(k.origin())
        try:
            yield
        finally:
            self._open = None
        k.wgmma_commit_group()
        self._under_way.append(group)
        self._note(_Event(group=group))

    def started(self, accumulator: Any, operands: Sequence[object]) -> None:
        """Note a `wgmma` product, which belongs to the group that has begun."""
        assert self._open is not None  # `group` was entered
        self._open.accumulators.append(accumulator)
        self._open.operands += operands

    def waited(self, pending: int) -> None:
        """Note a wait after which at most the `pending` newest groups of `wgmma` are in flight."""
        self._note(_Event(pending=pending))
        self._under_way = _newest(self._under_way, pending)

    def touched(self, what: Any, origin: Callable[[], Origin], *, written: bool = False) -> None:
        """Note that an accumulator, or the memory of an operand, is used at a line that `origin` returns, or
        only `written`. Raises `TypeMismatchError` if a product under way uses it.
        """
        # An accumulator is touched once for each of its registers: one step, which is judged once.
        last = self._last
        if last.touched is what and (written or not last.written) and self._open is None:
            return
        at = origin()
        _check(self._under_way if self._open is None else [*self._under_way, self._open], what, at, "")
        self._note(_Event(touched=what, origin=at, written=written))

    def _note(self, event: _Event) -> None:
        self._events.append(event)
        self._last = event

    def land(self) -> None:
        """Note that the code of the present role ends; groups of `wgmma` may still be in flight."""
        self._left += self._under_way
        self._under_way = []

    def require_landed(self, kernel: str) -> None:
        """Raise `TypeMismatchError` if the kernel does not wait for all its products."""
        for group in [*self._left, *self._under_way]:
            raise TypeMismatchError(
                f"kernel {kernel!r}: the product started at {group.origin} is still under way where the code "
                "of its warps ends; wait after it with k.wgmma.wait()"
            )

    def mark(self) -> int:
        """The number of the step that the kernel has reached, with which `replay` begins."""
        self._last = _NOTHING
        return len(self._events)

    def has_started(self, start: int) -> bool:
        """Whether a group of `wgmma` products has begun since step `start`."""
        return any(event.group is not None for event in self._events[start:])

    def replay(self, start: int) -> None:
        """Follow the steps since `start`, the beginning of a loop, once more from its end. Raises
        `TypeMismatchError` if they touch what the previous iteration multiplies, or what the assembler takes
        for that.
        """
        under_way = list(self._under_way)
        carried = _Carried(under_way)
        for event in self._events[start:]:
            if event.group is not None:
                under_way.append(event.group)
            elif event.pending is not None:
                newest = _newest(under_way, event.pending)
                carried.finished(under_way[: len(under_way) - len(newest)], event.pending)
                under_way = newest
            else:
                assert event.origin is not None  # every touch has one
                _check(under_way, event.touched, event.origin, " in the iteration before")
                if not event.written:
                    carried.read(event.touched, event.origin)


class _Carried:
    """The groups under way where a loop's body ends, as ptxas follows them through the next iteration.

    It knows of such a group only that `wgmma.wait_group 0` finishes it. If another wait is
    the one that finishes it, an ordinary instruction that reads its accumulator has ptxas serialise all
    products of the kernel (advisory C7514), until a later wait finishes a further product of that
    accumulator. An instruction that only writes it is taken. Measured with ptxas 13.0;
    `tests/dsl/test_products_under_way.py` has the cases.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = list(groups)
        self._unfinished: dict[int, tuple[Group, int]] = {}  # by the accumulator, with the wait's `pending`

    def finished(self, groups: Sequence[Group], pending: int) -> None:
        """Note the groups, oldest first, that a wait for all but `pending` groups finishes."""
        carried = [group for group in groups if any(group is one for one in self._groups)]
        self._groups = [group for group in self._groups if not any(group is one for one in carried)]
        for group in groups[len(carried) if pending else 0 :]:
            for accumulator in group.accumulators:
                self._unfinished.pop(id(accumulator), None)
        if pending:
            self._unfinished |= {id(a): (group, pending) for group in carried for a in group.accumulators}

    def read(self, what: Any, origin: Origin) -> None:
        """Raise `TypeMismatchError` if ptxas would serialise products because of this use."""
        if id(what) not in self._unfinished:
            return
        group, pending = self._unfinished[id(what)]
        raise TypeMismatchError(
            f"{what!r} is used at {origin}, after a wait for all but {pending} groups that ends the product "
            f"started at {group.origin} in the iteration before; ptxas counts no groups across the end of a "
            "loop's body, and would serialise all products (C7514): let k.wgmma.wait() be the first wait "
            "that ends this product, at the end of the body or in the next iteration"
        )


def _newest(groups: list[Group], count: int) -> list[Group]:
    return groups[len(groups) - count :] if count < len(groups) else groups


def _check(groups: Sequence[Group], what: Any, origin: Origin, when: str) -> None:
    for group in groups:
        if any(what is a for a in group.accumulators):
            raise TypeMismatchError(
                f"{what!r} is used at {origin} while the product started at {group.origin}{when} writes it; "
                "wait before with k.wgmma.wait()"
            )
        if any(what is owner for owner in group.operands):
            raise TypeMismatchError(
                f"shared memory is given back at {origin} while the product started at {group.origin}"
                f"{when} reads it; wait before with k.wgmma.wait()"
            )
