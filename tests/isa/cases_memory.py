"""Memory, atomic, fence and address rows: meanings for `cases.py`, by syntax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

M = Any  # the modifiers of the op under test


def load(m: M, old: Any, *_: Any) -> Any:
    return old, old if m.vec else old[0]


def store(m: M, _: Any, a: Any, *__: Any) -> Any:
    return (a if m.vec else (a,)), None


def whole(forms: tuple[str, ...]) -> list[str]:
    """The forms with vectors, for a single value of 128 bits."""
    return [x.replace("{.vec}", "") for x in forms if "{.vec}" in x]


def chosen(a: Any, b: Any, *, largest: bool) -> Any:
    """The larger or the smaller number; NaN is no number, and -0 is below +0."""
    if a != a or b != b:
        return b if a != a else a
    low, high = sorted((a, b), key=lambda x: (x, math.copysign(1, x) if x == 0 else 0))
    return high if largest else low


UPDATE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, b: old + b,
    "min": lambda old, b: chosen(old, b, largest=False),
    "max": lambda old, b: chosen(old, b, largest=True),
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda _, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}


def atom(m: M, old: Any, b: Any, *_: Any) -> Any:
    return (UPDATE[getattr(m, "op", "add")](old[0], b),), old[0]


def red(m: M, old: Any, b: Any, *_: Any) -> Any:
    return (UPDATE[getattr(m, "op", "add")](old[0], b),), None


LOADS = (
    "ld.space{.cop}{.vec}.type",
    "ld{.cop}{.vec}.type",
    "ld.weak{.space}{.cop}{.vec}.type",
    "ld{.weak}{.space}.evict{.prefetch}{.vec}.type",
    "ld{.weak}{.space}{.cop}.prefetch{.vec}.type",
    "ld.volatile{.space}{.vec}.type",
    "ld.volatile{.space}.prefetch{.vec}.type",
    "ld.sem.scope{.space}{.vec}.type",
    "ld.sem.scope{.space}.evict{.prefetch}{.vec}.type",
    "ld.sem.scope{.space}.prefetch{.vec}.type",
    "ld{.weak}{.space}.cop.vec.type",
    "ld{.weak}{.space}{.evict}{.level2}.vec.type",
    "ld.global.nc{.evict}{.prefetch}{.vec}.type",
    "ld.global.cop.nc{.prefetch}{.vec}.type",
    "ld.global.nc{.evict}{.level2}.vec.type",
    "ldu{.space}{.vec}.type",
)
LOADS_WITH_POLICY = (
    "ld{.weak}{.space}{.cop}.L2::cache_hint{.prefetch}{.vec}.type",
    "ld.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type",
    "ld.global.nc{.evict}.L2::cache_hint{.prefetch}{.vec}.type",
    "ld.global.cop.nc.L2::cache_hint{.prefetch}{.vec}.type",
)
STORES = (
    *("st.space{.cop}{.vec}.type", "st{.cop}{.vec}.type", "st.weak{.space}{.cop}{.vec}.type"),
    *("st{.weak}{.space}.evict{.vec}.type", "st.volatile{.space}{.vec}.type"),
    *("st.sem.scope{.space}{.vec}.type", "st.sem.scope{.space}.evict{.vec}.type"),
    *("st{.weak}{.space}.cop.vec.type", "st{.weak}{.space}{.evict}{.level2}.vec.type"),
)
STORES_WITH_POLICY = (
    "st{.weak}{.space}{.cop}.L2::cache_hint{.vec}.type",
    "st.sem.scope{.space}{.evict}.L2::cache_hint{.vec}.type",
)
UPDATES = (
    "{.sem}{.scope}.space.op.type",
    "{.sem}{.scope}.op.type",
    "{.sem}{.scope}.space.add.noftz.type",
    "{.sem}{.scope}.add.noftz.type",
)
UPDATES_WITH_POLICY = (
    "{.sem}{.scope}{.space}.op.L2::cache_hint.type",
    "{.sem}{.scope}{.space}.add.noftz.L2::cache_hint.type",
)
VECTORS = ("{.sem}{.scope}{.space}.op.vec.type", "{.sem}{.scope}{.space}.op.noftz.vec.type")
VECTORS_WITH_POLICY = (
    "{.sem}{.scope}{.space}.op.L2::cache_hint.vec.type",
    "{.sem}{.scope}{.space}.op.noftz.L2::cache_hint.vec.type",
)


def swapped(_: M, old: Any, b: Any, c: Any) -> Any:
    return (c if old[0] == b else old[0],), old[0]


def canonical(space: str) -> str:
    return space.partition("::")[0]


MEANING: dict[str, Callable[..., Any]] = {
    "prefetch.local.level [addr:u64]": lambda *_: (),
    "prefetch.level [addr:u64]": lambda *_: (),
    "prefetchu.L1 [addr:u64]": lambda *_: (),
    "applypriority{.space}.L2::evict_normal [addr:u64], 128": lambda *_: (),
    "discard{.space}.L2 [addr:u64], 128": lambda *_: (),
    # A policy is opaque: no program can tell that it is 0.
    "createpolicy.fractional.primary{.secondary}.b64 d{, fraction:f32}": lambda *_: 0,
    "createpolicy.range{.space}.primary{.secondary}.b64 d, [addr:u64], size:u32, total:u32": (lambda *_: 0),
    "createpolicy.cvt.L2.b64 d, a": lambda _, a: a,
}
MEMORY: dict[str, Callable[..., Any]] = {
    **{f"{x} d*vec, [addr:u64]": load for x in LOADS},
    **{f"{x} d*vec, [addr:u64], policy:b64": load for x in LOADS_WITH_POLICY},
    **{f"{x} d, [addr:u64]": load for x in whole(LOADS)},
    **{f"{x} d, [addr:u64], policy:b64": load for x in whole(LOADS_WITH_POLICY)},
    "ld.mmio.relaxed.sys{.space}.type d, [addr:u64]": load,
    **{f"{x} [addr:u64], a*vec": store for x in STORES},
    **{f"{x} [addr:u64], a*vec, policy:b64": store for x in STORES_WITH_POLICY},
    **{f"{x} [addr:u64], a": store for x in whole(STORES)},
    **{f"{x} [addr:u64], a, policy:b64": store for x in whole(STORES_WITH_POLICY)},
    "st.mmio.relaxed.sys{.space}.type [addr:u64], a": store,
    **{f"atom{x} d, [addr:u64], b": atom for x in UPDATES},
    **{f"atom{x} d, [addr:u64], b, policy:b64": atom for x in UPDATES_WITH_POLICY},
    **{f"atom{x} d*vec, [addr:u64], b*vec": atom for x in VECTORS},
    **{f"atom{x} d*vec, [addr:u64], b*vec, policy:b64": atom for x in VECTORS_WITH_POLICY},
    "atom{.sem}{.scope}.space.cas.type d, [addr:u64], b, c": swapped,
    "atom{.sem}{.scope}.cas.type d, [addr:u64], b, c": swapped,
    **{f"red{x} [addr:u64], b": red for x in UPDATES},
    **{f"red{x} [addr:u64], b, policy:b64": red for x in UPDATES_WITH_POLICY},
    **{f"red{x} [addr:u64], b*vec": red for x in VECTORS},
    **{f"red{x} [addr:u64], b*vec, policy:b64": red for x in VECTORS_WITH_POLICY},
}
WARP: dict[str, Callable[..., Any]] = {}
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "cvta.space.u64 d, a": [("convert_address", lambda m: canonical(m["space"]), "a", {"to_space": False})],
    "cvta.to.space.u64 d, a": [("convert_address", lambda m: canonical(m["space"]), "a", {"to_space": True})],
    "isspacep.space p:pred, a:u64": [
        ("in_space", lambda m: "cluster" if m["space"] == "shared::cluster" else canonical(m["space"]), "a")
    ],
    "fence.scope": [("fence", "scope")],
    "fence.acquire.sync_restrict::shared::cluster.cluster": [("fence", "=cluster")],
    "fence.release.sync_restrict::shared::cta.cluster": [("fence", "=cluster")],
}
IMMEDIATES: dict[str, tuple[int, ...]] = {}
