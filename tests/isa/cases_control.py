"""Control, barrier and warp rows: meanings for `cases.py`, by syntax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

M = Any  # the modifiers of the op under test, or one lane of a warp


def members(lane: int, warp: list[M]) -> list[M]:
    return [x for n, x in enumerate(warp) if warp[lane].membermask >> n & 1 and x.active]


def matching(_: M, lane: int, warp: list[M]) -> int:
    return sum(1 << n for n, x in enumerate(warp) if x in members(lane, warp) and x.a == warp[lane].a)


def agreed(_: M, lane: int, warp: list[M]) -> tuple[int, bool]:
    same = all(x.a == warp[lane].a for x in members(lane, warp))
    return sum(1 << n for n, x in enumerate(warp) if same and x in members(lane, warp)), same


def extreme(m: M, lane: int, warp: list[M]) -> float:
    values = [abs(x.a) if m.abs else x.a for x in members(lane, warp)]
    numbers = [x for x in values if not math.isnan(x)]
    if not numbers or (m.NaN and len(numbers) < len(values)):
        return math.nan
    ordered = sorted(numbers, key=lambda x: (x, math.copysign(1, x)))
    return ordered[0] if m.op == "min" else ordered[-1]


MEANING: dict[str, Callable[..., Any]] = {
    "nanosleep.u32 a": lambda *_: (),
    "pmevent n:imm": lambda *_: (),
    "pmevent.mask n:imm": lambda *_: (),
}
MEMORY: dict[str, Callable[..., Any]] = {}
WARP: dict[str, Callable[..., Any]] = {
    "match.any.sync.type d:b32, a, membermask:u32": matching,
    "match.all.sync.type d:b32, a, membermask:u32": lambda *args: agreed(*args)[0],
    "match.all.sync.type d:b32|p:pred, a, membermask:u32": agreed,
    "redux.sync.op{.abs}{.NaN}.f32 d, a, membermask:u32": extreme,
}
SYNC = ("bar.cta.sync", "barrier{.cta}.sync{.aligned}")
ARRIVE = ("bar.cta.arrive", "barrier{.cta}.arrive{.aligned}")
VOTES = (
    "bar.red.popc.u32 d,",
    "bar.red.op.pred p:pred,",
    "bar.cta.red.popc.u32 d,",
    "bar.cta.red.op.pred p:pred,",
    "barrier{.cta}.red.popc{.aligned}.u32 d,",
    "barrier{.cta}.red.op{.aligned}.pred p:pred,",
)


def voting(names: dict[str, Any]) -> dict[str, Any]:
    return {"wait": True, "vote": names["c"]}


def copies() -> dict[str, list[tuple[Any, ...]]]:
    """The forms of cp.async other than the oldest."""
    result: dict[str, list[tuple[Any, ...]]] = {}
    for cache, size, arguments in (("ca", "cp_size:imm", "cp_size"), ("cg", "16", 16)):
        for space in ("shared", "shared::cta"):
            head = f"cp.async.{cache}.{space}.global"
            where = f"[dst:u32], [src:u64], {size}"
            call = ("copy_async", "dst", "src", arguments)
            if space != "shared":
                result[f"{head}{{.prefetch}} {where}{{, src_size:u32}}"] = [(*call, "src_size")]
            # IMMEDIATES has 16 as the first literal for cp_size.
            unless = [(*call, lambda names: 0 if names["ignore"] else 16)]
            result[f"{head}{{.prefetch}} {where}, ignore:pred"] = unless
            head += ".L2::cache_hint{.prefetch}"
            result[f"{head} {where}, policy:b64"] = [(*call, None)]
            result[f"{head} {where}, src_size:u32, policy:b64"] = [(*call, "src_size")]
            result[f"{head} {where}, ignore:pred, policy:b64"] = unless
    return result


CALLS: dict[str, list[tuple[Any, ...]]] = {
    # The interpreter's scheduler carries these out.
    "brx.idx{.uni} a:u32, target:label": [],
    "call{.uni} f:label": [],
    "call{.uni} f:label, a:args": [],
    "call{.uni} d:args, f:label": [],
    "call{.uni} d:args, f:label, a:args": [],
    "call{.uni} f:u64, t:label": [],
    "call{.uni} f:u64, a:args, t:label": [],
    "call{.uni} d:args, f:u64, t:label": [],
    "call{.uni} d:args, f:u64, a:args, t:label": [],
    "brkpt": [("trap", "=brkpt instruction")],
    **{f"{x} a:u32{{, b:u32}}": [("barrier", "a", "b", {"wait": True})] for x in SYNC},
    **{f"{x} a:u32, b:u32": [("barrier", "a", "b", {"wait": False})] for x in ARRIVE},
    **{f"{x} a:u32, b:u32, c:pred": [("barrier", "a", "b", voting)] for x in VOTES},
    **{f"{x} a:u32, c:pred": [("barrier", "a", None, voting)] for x in VOTES},
    **copies(),
}
IMMEDIATES: dict[str, tuple[int, ...]] = {}
