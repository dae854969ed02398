"""Kernels with roles: each role is some warps of a CTA, with code of its own, and barriers among them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT, run

WARP = 32
HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u32 n, .param .u32 m)
{
.reg .pred %p<99>;
.reg .b32 %r<99>;
.reg .b64 %rd<9>;
ld.param.u64 %rd1, [x];
ld.param.u32 %r1, [n];
ld.param.u32 %r2, [m];
mov.u32 %r3, %tid.x;
shr.u32 %r4, %r3, 5;
and.b32 %r5, %r3, 31;
ld.global.u32 %r6, [%rd1];
"""


def text(*roles: tuple[int, str], before: str = "", after: str = "") -> str:
    """PTX text of kernel `k`: each role is a number of warps and the code of these warps. In it %r1 and
    %r2 are the parameters n and m, %r3 the thread, %r4 the warp, %r5 the lane, %r6 a number from memory.
    """
    lines, first = [HEAD, before], 0
    for number, (warps, body) in enumerate(roles):
        lines.append(f"sub.u32 %r7, %r4, {first}; setp.ge.u32 %p0, %r7, {warps}; @%p0 bra role{number};")
        lines.append(f"{body}\nbra join;\nrole{number}:")
        first += warps
    return "\n".join([*lines, "join:", after, "ret;\n}"])


def sync(number: int, threads: int) -> str:
    """Wait at a barrier."""
    return f"bar.sync {number}, {threads};\n"


def arrive(number: int, threads: int) -> str:
    """Arrive at a barrier."""
    return f"bar.arrive {number}, {threads};\n"


_labels = count()


def loop(body: str, bound: str = "%r1", register: int = 20, step: int | str = 1, start: str = "0") -> str:
    """A loop over a register from `start` to `bound`, which may have no iteration."""
    label = next(_labels)
    p, r = f"%p{register}", f"%r{register}"
    return (
        f"mov.u32 {r}, {start}; setp.ge.u32 {p}, {r}, {bound}; @{p} bra done{label};\nloop{label}:\n{body}"
        f"add.u32 {r}, {r}, {step}; setp.lt.u32 {p}, {r}, {bound}; @{p} bra loop{label};\ndone{label}:\n"
    )


def only_if(condition: str, body: str) -> str:
    """Code behind a condition, which sets %p9."""
    label = next(_labels)
    return f"{condition} @!%p9 bra not{label};\n{body}not{label}:\n"


def outcome(ptx: str, block: int, n: int, m: int, memory: int = 0, seed: int | None = None) -> str:
    """What a run of the kernel comes to: "" if it is clean, else the sanitizer's report or the trap."""
    schedule: Any = "lockstep" if seed is None else PCT(seed=seed)
    x: np.ndarray[Any, Any] = np.full(4, memory, np.uint32)
    try:
        result = run(
            ptx, grid=1, block=block, args=[x, n, m], sanitize="sync", schedule=schedule,
            raise_on_report=False, max_instructions=20_000,
        )  # fmt: skip
    except TrapError as error:
        return str(error)
    return str(result.reports[0]) if result.reports else ""


# ------------------------------------------------------------------------------ random kernels


@dataclass
class Item:
    """A step of one role: an event at a barrier, or a loop or a condition around others."""

    kind: str
    number: int = 0
    threads: int = 0
    bound: str = ""
    inner: list[Item] = field(default_factory=list)

    def copy(self) -> Item:
        """A copy with copies of what is inside."""
        return Item(self.kind, self.number, self.threads, self.bound, [i.copy() for i in self.inner])


class RandomRoles:
    """A random kernel. What the roles do together is right at first; most kernels then get mistakes."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.warps = [self._draw.randint(1, 2) for _ in range(self._draw.randint(2, 3))]
        self._items: list[list[Item]] = [[] for _ in self.warps]
        self._together(list(range(len(self.warps))), self._items, 3)
        self.mistakes = self._draw.choice((0, 0, 1, 1, 2))
        for _ in range(self.mistakes):
            self._mistake()

    @property
    def block(self) -> int:
        """The number of threads."""
        return WARP * sum(self.warps)

    def _together(self, roles: Sequence[int], items: list[list[Item]], depth: int) -> None:
        """Add what some roles do together, to the items of each."""
        draw = self._draw
        for _ in range(draw.randint(1, 3)):
            kind = draw.choice(("meet", "meet", "hand", "hand", "loop", "loop", "if", "all"))
            some = sorted(draw.sample(roles, draw.randint(min(2, len(roles)), len(roles))))
            if kind in ("loop", "if") and depth:
                self._inside(kind, some, items, depth - 1)
            elif kind == "all" and len(roles) == len(self.warps):
                for r in roles:
                    items[r].append(Item("sync"))
            else:
                self._meet(some, items, kind == "hand" and len(some) > 1)

    def _inside(self, kind: str, roles: Sequence[int], items: list[list[Item]], depth: int) -> None:
        """Add a loop or a condition of several roles."""
        bounds = ("%r1", "%r1", "%r2", "3") if kind == "loop" else ("1", "2")
        bound = self._draw.choice(bounds)
        inner: list[list[Item]] = [[] for _ in self.warps]
        self._together(roles, inner, depth)
        for r in roles:
            items[r].append(Item(kind, bound=bound, inner=inner[r]))

    def _meet(self, roles: Sequence[int], items: list[list[Item]], hands: bool) -> None:
        """Let roles meet at a barrier, or one of them hand over to the others, perhaps in turns."""
        draw, number = self._draw, self._draw.randint(1, 4)
        threads = WARP * sum(self.warps[r] for r in roles)
        giver = draw.choice(roles) if hands else -1
        back = hands and draw.random() < 0.6
        for r in roles:
            items[r].append(Item("arrive" if r == giver else "sync", number, threads))
            if back:
                items[r].append(Item("sync" if r == giver else "arrive", number + 5, threads))

    def _mistake(self) -> None:
        draw = self._draw
        lists = [result for role in self._items for result in _lists(role) if result]
        if not lists:
            return
        items = draw.choice(lists)
        at = draw.randrange(len(items))
        item = items[at]
        kind = draw.choice(
            ("drop", "again", "number", "threads", "swap", "bound", "wrap", "kind", "exit", "lane")
        )
        if kind == "drop":
            del items[at]
        elif kind == "again":
            items.insert(at, item.copy())
        elif kind == "swap" and len(items) > 1:
            other = draw.randrange(len(items))
            items[at], items[other] = items[other], items[at]
        elif kind == "number" and item.kind in ("sync", "arrive"):
            item.number = draw.randint(0, 6)
            item.threads = item.threads or self.block
        elif kind == "threads" and item.threads:
            item.threads = max(item.threads + draw.choice((-WARP, WARP, 16)), 16)
        elif kind == "kind" and item.threads:
            item.kind = "arrive" if item.kind == "sync" else "sync"
        elif kind == "bound" and item.kind == "loop":
            item.bound = draw.choice(("%r1", "%r2", "3", "2"))
        elif kind in ("exit", "lane"):
            items.insert(at, Item(kind))
        else:
            items[at] = Item("if", bound=draw.choice(("1", "2", "memory")), inner=[item])

    def text(self) -> str:
        """The kernel's PTX."""
        return text(*((w, _code(items, 20)) for w, items in zip(self.warps, self._items, strict=True)))


def _lists(items: list[Item]) -> Iterator[list[Item]]:
    yield items
    for item in items:
        yield from _lists(item.inner)


def _code(items: Sequence[Item], register: int) -> str:
    result = ""
    for item in items:
        inner = _code(item.inner, register + 1)
        if item.kind == "loop":
            result += loop(inner, item.bound, register)
        elif item.kind == "if":
            what = (
                "setp.eq.u32 %p9, %r6, 1;"
                if item.bound == "memory"
                else f"setp.gt.u32 %p9, %r{item.bound}, 2;"
            )
            result += only_if(what, inner)
        elif item.kind == "exit":
            result += "setp.gt.u32 %p9, %r2, 3; @%p9 exit;\n"
        elif item.kind == "lane":
            result += only_if("setp.eq.u32 %p9, %r5, 3;", "add.u32 %r8, %r8, 1;\n")
        elif not item.threads:
            result += f"bar.sync {item.number};\n"
        else:
            result += (sync if item.kind == "sync" else arrive)(item.number, item.threads)
    return result
