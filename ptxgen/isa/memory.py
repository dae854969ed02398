"""Data movement and memory (PTX ISA, "Data Movement and Conversion Instructions").

Addresses: every address operand is declared u64; in shared memory a 32-bit register holds one just
as well, and the table's readers accept either. Without a state space an address is generic.

Cache operators, eviction priorities, prefetch sizes and cache policies change no value. The
interpreter's memory is sequentially consistent, so that `.weak`, `.volatile`, `.relaxed`,
`.acquire` and `.release` accesses are all the same here. 128-bit values (`.b128`) are not declared.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.declare import inst
from ptxgen.isa.spec import Effect, gate
from ptxgen.types import b8, b16, b32, b64, f32, f64, pred, s8, s16, s32, s64, u8, u16, u32, u64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ptxgen.isa.machine import Lanes, Machine
    from ptxgen.types import ScalarType

MOVEMENT: Final = "Data Movement and Conversion Instructions"
_SHORT: Final = (b16, u16, s16, b8, u8, s8)
_WORDS: Final = (f32, b32, u32, s32)
NARROW: Final = (*_WORDS, *_SHORT)  # up to four in one 16-byte access
WIDE: Final = (b64, u64, s64, f64)  # up to two
FERMI: Final = gate(ptx=(2, 0), sm=20)
LOAD_CACHE: Final = dict.fromkeys(("ca", "cg", "cs", "lu", "cv"), FERMI)
STORE_CACHE: Final = dict.fromkeys(("wb", "cg", "cs", "wt"), FERMI)
GENERIC: Final = "generic"

# Spellings of state spaces that came later, and what they need.
CTA: Final = gate(ptx=(7, 8), sm=30)
CLUSTER: Final = gate(ptx=(7, 8), sm=90)
_PARAMETER: Final = gate(ptx=(8, 3), sm=10)
_SHARED: Final = {"shared::cta": CTA, "shared::cluster": CLUSTER}
LOAD_SPACES: Final = ("global", "shared", "param", "const", "local")
STORE_SPACES: Final = ("global", "shared", "local")
_LATER_LOAD_SPACES: Final = {**_SHARED, "param::entry": _PARAMETER, "param::func": _PARAMETER}
_LATER_STORE_SPACES: Final = {**_SHARED, "param": None, "param::func": _PARAMETER}
# What other threads may see, which is where an access can be volatile or ordered.
SEEN_SPACES: Final = {"global": None, "shared": None, **_SHARED}

_VOLTA: Final = gate(ptx=(6, 0), sm=70)
SCOPES: Final = {"cta": None, "gpu": None, "sys": None, "cluster": CLUSTER}
# `no_allocate` first: the one that generated kernels ask for.
_EVICT: Final = dict.fromkeys(
    ("L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first",
     "L1::evict_last"),
    gate(ptx=(7, 4), sm=70),
)  # fmt: skip
_PREFETCH: Final = {
    "L2::64B": gate(ptx=(7, 4), sm=75),
    "L2::128B": gate(ptx=(7, 4), sm=75),
    "L2::256B": gate(ptx=(7, 4), sm=80),
}
_EVICT_L2: Final = ("L2::evict_normal", "L2::evict_first", "L2::evict_last")
POLICY: Final[dict[str, Any]] = {"ptx": (7, 4), "sm": 80}  # what .L2::cache_hint needs
_BLACKWELL: Final[dict[str, Any]] = {"ptx": (8, 8), "sm": 100}  # accesses of 32 bytes

# What the slots `vec` and `type` may be together: up to 16 bytes, and exactly 32.
_SHAPES: Final[tuple[dict[str, Any], ...]] = (
    {"vec": ("v2", "v4"), "type": NARROW},
    {"vec": ("v2",), "type": WIDE},
)
_LARGE: Final[tuple[dict[str, Any], ...]] = (
    {"vec": ("v8",), "type": _WORDS},
    {"vec": ("v4",), "type": WIDE},
)

_CANONICAL: Final = {
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "param::entry": "param",
    "param::func": "param",
    None: GENERIC,
}


def hinted(
    meaning: Callable[..., Any], doc: str, *hints: str, **fixed: object
) -> Callable[..., Any]:
    """`meaning` as the function of a row that has the modifiers and operands `hints` too, which
    change no value, and for which the parameters `fixed` are always the same; `doc` says what the
    row means.
    """

    @functools.wraps(meaning)
    def whole(**given: Any) -> Any:
        return meaning(**{name: x for name, x in given.items() if name not in hints}, **fixed)

    known = [p for p in inspect.signature(meaning).parameters.values() if p.name not in fixed]
    more = [inspect.Parameter(hint, inspect.Parameter.KEYWORD_ONLY) for hint in hints]
    whole.__signature__ = inspect.Signature([*known, *more])  # type: ignore[attr-defined]
    whole.__doc__ = doc
    return whole


def canonical_space(space: str | None) -> str:
    """The name that `Machine` has for a state space as PTX spells it; None for no space."""
    return _CANONICAL.get(space) or str(space)


# ---------------------------------------- mov


@inst(
    "mov.type d, a",
    type=(u32, s32, u64, s64, f32, f64, b32, b64, u16, s16, b16, pred),
    section=f"{MOVEMENT}: mov",
)
def mov(a: Lanes) -> Lanes:
    """d = a: a register, a literal, a special register, or the address of a variable."""
    return a


@inst("mov.b32 d, a:b16*2", name="pack", section=f"{MOVEMENT}: mov")
def pack_b32_b16(a: tuple[Lanes, ...]) -> Lanes:
    """d = the elements of a side by side, the first in the lowest bits."""
    return _packed(a, np.dtype(np.uint32))


@inst("mov.b64 d, a:b32*2", name="pack", section=f"{MOVEMENT}: mov")
def pack_b64_b32(a: tuple[Lanes, ...]) -> Lanes:
    """d = the elements of a side by side, the first in the lowest bits."""
    return _packed(a, np.dtype(np.uint64))


@inst("mov.b64 d, a:b16*4", name="pack", section=f"{MOVEMENT}: mov")
def pack_b64_b16(a: tuple[Lanes, ...]) -> Lanes:
    """d = the elements of a side by side, the first in the lowest bits."""
    return _packed(a, np.dtype(np.uint64))


@inst("mov.b32 d:b16*2, a", name="unpack", section=f"{MOVEMENT}: mov")
def unpack_b32_b16(a: Lanes) -> tuple[Lanes, ...]:
    """d = the parts of a, the lowest bits first."""
    return _unpacked(a, 2)


@inst("mov.b64 d:b32*2, a", name="unpack", section=f"{MOVEMENT}: mov")
def unpack_b64_b32(a: Lanes) -> tuple[Lanes, ...]:
    """d = the parts of a, the lowest bits first."""
    return _unpacked(a, 2)


@inst("mov.b64 d:b16*4, a", name="unpack_b16", section=f"{MOVEMENT}: mov")
def unpack_b64_b16(a: Lanes) -> tuple[Lanes, ...]:
    """d = the parts of a, the lowest bits first."""
    return _unpacked(a, 4)


def _packed(parts: tuple[Lanes, ...], dtype: np.dtype[np.generic]) -> Lanes:
    step = 8 * dtype.itemsize // len(parts)
    whole = parts[0].astype(dtype)
    for n, part in enumerate(parts[1:], 1):
        whole = np.bitwise_or(whole, np.left_shift(part.astype(dtype), dtype.type(n * step)))
    return whole


def _unpacked(whole: Lanes, count: int) -> tuple[Lanes, ...]:
    step = 8 * whole.dtype.itemsize // count
    part = np.dtype(f"u{whole.dtype.itemsize // count}")
    return tuple(
        np.right_shift(whole, whole.dtype.type(n * step)).astype(part) for n in range(count)
    )


# ---------------------------------------- ld


def _load(machine: Machine, space: str, addr: Lanes, type: ScalarType, vec: str | None) -> Any:
    values = machine.load(space, addr, type, int(vec[1:]) if vec else 1)
    return values if vec else values[0]


def _ld(
    machine: Machine, addr: Lanes, *, space: str, cop: str | None, vec: str | None, type: ScalarType
) -> Any:
    """d = the value, or the vector of consecutive values, at addr; .cop is a hint for caches."""
    del cop
    return _load(machine, canonical_space(space), addr, type, vec)


def _ld_generic(
    machine: Machine, addr: Lanes, *, cop: str | None, vec: str | None, type: ScalarType
) -> Any:
    """d = the value, or the vector of consecutive values, at the generic address addr; .cop is a
    hint for caches.
    """
    del cop
    return _load(machine, GENERIC, addr, type, vec)


_spaces: Any
for _shape in _SHAPES:
    for _spaces in (LOAD_SPACES, _LATER_LOAD_SPACES):
        inst(
            "ld.space{.cop}{.vec}.type d*vec, [addr:u64]", space=_spaces, cop=LOAD_CACHE, **_shape,
            effect=Effect.READ, section=f"{MOVEMENT}: ld",
        )(_ld)  # fmt: skip
    inst(
        "ld{.cop}{.vec}.type d*vec, [addr:u64]", name="ld_generic", cop=LOAD_CACHE, **_shape,
        ptx=(2, 0), sm=20, effect=Effect.READ, section=f"{MOVEMENT}: ld",
    )(_ld_generic)  # fmt: skip


def _ld_in(
    machine: Machine, addr: Lanes, *, space: str | None, vec: str | None, type: ScalarType
) -> Any:
    return _load(machine, canonical_space(space), addr, type, vec)


def _loads(
    syntax: str, name: str, doc: str, *hints: str, fixed: Mapping[str, object] | None = None,
    shapes: tuple[dict[str, Any], ...] = _SHAPES, section: str = "ld", **keywords: Any,
) -> None:  # fmt: skip
    """Declare loads of each of the shapes; `hints` and `fixed` are as for `hinted`."""
    function = hinted(_ld_in, doc, *hints, **(fixed or {}))
    for shape in shapes:
        inst(
            syntax, name=name, **keywords, **shape,
            effect=Effect.READ, section=f"{MOVEMENT}: {section}",
        )(function)  # fmt: skip


_D: Final = "d*vec, [addr:u64]"
_VALUE: Final = "d = the value, or the vector of consecutive values, at addr"
_RACE: Final = "as one access of a race that the threads of the scope may run"
_CONSTANT: Final = f"{_VALUE}, which nobody writes while the kernel runs."
_GLOBAL: Final[dict[str, Any]] = {"space": ("global",)}
_IN_GLOBAL: Final = {"space": "global"}
_WEAK: Final[dict[str, Any]] = {"weak": {True: _VOLTA}}
_ORDERED_LOAD: Final[dict[str, Any]] = {"sem": ("relaxed", "acquire"), "scope": SCOPES}
_MODERN: Final[dict[str, Any]] = {"ptx": (6, 0), "sm": 70}

_loads(
    f"ld.weak{{.space}}{{.cop}}{{.vec}}.type {_D}", "ld_weak",
    f"{_VALUE}; not ordered against other threads' accesses, just as without .weak.", "cop",
    space={**dict.fromkeys(LOAD_SPACES), **_LATER_LOAD_SPACES}, cop=LOAD_CACHE, **_MODERN,
)  # fmt: skip
_loads(
    f"ld{{.weak}}{{.space}}.evict{{.prefetch}}{{.vec}}.type {_D}", "ld_evict",
    f"{_VALUE}; .evict and .prefetch are hints for caches.", "weak", "evict", "prefetch",
    **_WEAK, **_GLOBAL, evict=_EVICT, prefetch=_PREFETCH,
)  # fmt: skip
_loads(
    f"ld{{.weak}}{{.space}}{{.cop}}.prefetch{{.vec}}.type {_D}", "ld_prefetch",
    f"{_VALUE}; .cop and .prefetch are hints for caches.", "weak", "cop", "prefetch",
    **_WEAK, **_GLOBAL, cop=LOAD_CACHE, prefetch=_PREFETCH,
)  # fmt: skip
_loads(
    f"ld{{.weak}}{{.space}}{{.cop}}.L2::cache_hint{{.prefetch}}{{.vec}}.type {_D}, policy:b64",
    "ld_policy", f"{_VALUE}; .cop, .prefetch and the cache policy are hints for caches.",
    "weak", "cop", "prefetch", "policy",
    **_WEAK, **_GLOBAL, cop={**LOAD_CACHE, **_EVICT}, prefetch=_PREFETCH, **POLICY,
)  # fmt: skip
_loads(
    f"ld.volatile{{.space}}{{.vec}}.type {_D}", "ld_volatile",
    f"{_VALUE}, which is read each time.", space=SEEN_SPACES,
)  # fmt: skip
_loads(
    f"ld.volatile{{.space}}.prefetch{{.vec}}.type {_D}", "ld_volatile",
    f"{_VALUE}, which is read each time; .prefetch is a hint for caches.", "prefetch",
    **_GLOBAL, prefetch=_PREFETCH,
)  # fmt: skip
_loads(
    f"ld.sem.scope{{.space}}{{.vec}}.type {_D}", "ld_ordered",
    f"{_VALUE}, {_RACE}; accesses after an .acquire come later.", "sem", "scope",
    **_ORDERED_LOAD, space=SEEN_SPACES, **_MODERN,
)  # fmt: skip
_loads(
    f"ld.sem.scope{{.space}}.evict{{.prefetch}}{{.vec}}.type {_D}", "ld_ordered",
    f"{_VALUE}, {_RACE}; .evict and .prefetch are hints for caches.",
    "sem", "scope", "evict", "prefetch",
    **_ORDERED_LOAD, **_GLOBAL, evict=_EVICT, prefetch=_PREFETCH, **_MODERN,
)  # fmt: skip
_loads(
    f"ld.sem.scope{{.space}}.prefetch{{.vec}}.type {_D}", "ld_ordered",
    f"{_VALUE}, {_RACE}; .prefetch is a hint for caches.", "sem", "scope", "prefetch",
    **_ORDERED_LOAD, **_GLOBAL, prefetch=_PREFETCH, **_MODERN,
)  # fmt: skip
_loads(
    f"ld.sem.scope{{.space}}{{.evict}}.L2::cache_hint{{.vec}}.type {_D}, policy:b64",
    "ld_ordered", f"{_VALUE}, {_RACE}; .evict and the cache policy are hints for caches.",
    "sem", "scope", "evict", "policy", **_ORDERED_LOAD, **_GLOBAL, evict=_EVICT, **POLICY,
)  # fmt: skip
_loads(
    "ld.mmio.relaxed.sys{.space}.type d, [addr:u64]", "ld_mmio",
    "d = the value at addr, a device's register, which is read exactly once.",
    fixed={"vec": None}, shapes=({"type": (*NARROW, *WIDE)},), **_GLOBAL, ptx=(8, 2), sm=70,
)  # fmt: skip
_loads(
    f"ld{{.weak}}{{.space}}.cop.vec.type {_D}", "ld_large",
    "d = the vector of 32 bytes at addr; .cop is a hint for caches.", "weak", "cop",
    shapes=_LARGE, **_WEAK, **_GLOBAL, cop=LOAD_CACHE, **_BLACKWELL,
)  # fmt: skip
_loads(
    f"ld{{.weak}}{{.space}}{{.evict}}{{.level2}}.vec.type {_D}", "ld_large",
    "d = the vector of 32 bytes at addr; .evict and .level2 are hints for caches.",
    "weak", "evict", "level2",
    shapes=_LARGE, **_WEAK, **_GLOBAL, evict=_EVICT, level2=_EVICT_L2, **_BLACKWELL,
)  # fmt: skip
_loads(
    f"ld.global.nc{{.evict}}{{.prefetch}}{{.vec}}.type {_D}", "ld_nc", _CONSTANT,
    "evict", "prefetch", fixed=_IN_GLOBAL, section="ld.global.nc",
    evict=_EVICT, prefetch=_PREFETCH, ptx=(3, 1), sm=32,
)  # fmt: skip
_loads(
    f"ld.global.cop.nc{{.prefetch}}{{.vec}}.type {_D}", "ld_nc", _CONSTANT,
    "cop", "prefetch", fixed=_IN_GLOBAL, section="ld.global.nc",
    cop=("ca", "cg", "cs"), prefetch=_PREFETCH, ptx=(3, 1), sm=32,
)  # fmt: skip
_loads(
    f"ld.global.nc{{.evict}}.L2::cache_hint{{.prefetch}}{{.vec}}.type {_D}, policy:b64",
    "ld_nc_policy", _CONSTANT, "evict", "prefetch", "policy",
    fixed=_IN_GLOBAL, section="ld.global.nc", evict=_EVICT, prefetch=_PREFETCH, **POLICY,
)  # fmt: skip
_loads(
    f"ld.global.cop.nc.L2::cache_hint{{.prefetch}}{{.vec}}.type {_D}, policy:b64",
    "ld_nc_policy", _CONSTANT, "cop", "prefetch", "policy",
    fixed=_IN_GLOBAL, section="ld.global.nc",
    cop=("ca", "cg", "cs"), prefetch=_PREFETCH, **POLICY,
)  # fmt: skip
_loads(
    f"ld.global.nc{{.evict}}{{.level2}}.vec.type {_D}", "ld_nc_large",
    "d = the vector of 32 bytes at addr, which nobody writes while the kernel runs.",
    "evict", "level2", fixed=_IN_GLOBAL, shapes=_LARGE, section="ld.global.nc",
    evict=_EVICT, level2=_EVICT_L2, **_BLACKWELL,
)  # fmt: skip
_loads(
    f"ldu{{.space}}{{.vec}}.type {_D}", "ldu",
    f"{_VALUE}, which is the same for all threads of the warp and is only read.",
    section="ldu", **_GLOBAL, ptx=(2, 0), sm=20,
)  # fmt: skip

# ---------------------------------------- st


def _store(
    machine: Machine, space: str, addr: Lanes, a: Lanes | tuple[Lanes, ...], type: ScalarType
) -> tuple[()]:
    machine.store(space, addr, type, a if isinstance(a, tuple) else (a,))
    return ()


def _st(
    machine: Machine, addr: Lanes, a: Lanes | tuple[Lanes, ...], *,
    space: str, cop: str | None, vec: str | None, type: ScalarType,
) -> tuple[()]:  # fmt: skip
    """Write a, or the elements of the vector a, to addr on; .cop is a hint for caches."""
    del cop, vec
    return _store(machine, canonical_space(space), addr, a, type)


def _st_generic(
    machine: Machine, addr: Lanes, a: Lanes | tuple[Lanes, ...], *,
    cop: str | None, vec: str | None, type: ScalarType,
) -> tuple[()]:  # fmt: skip
    """Write a, or the elements of the vector a, to the generic address addr on; .cop is a hint for
    caches.
    """
    del cop, vec
    return _store(machine, GENERIC, addr, a, type)


for _shape in _SHAPES:
    for _spaces in (STORE_SPACES, _LATER_STORE_SPACES):
        inst(
            "st.space{.cop}{.vec}.type [addr:u64], a*vec", space=_spaces, cop=STORE_CACHE, **_shape,
            effect=Effect.WRITE, section=f"{MOVEMENT}: st",
        )(_st)  # fmt: skip
    inst(
        "st{.cop}{.vec}.type [addr:u64], a*vec", name="st_generic", cop=STORE_CACHE, **_shape,
        ptx=(2, 0), sm=20, effect=Effect.WRITE, section=f"{MOVEMENT}: st",
    )(_st_generic)  # fmt: skip


def _st_in(
    machine: Machine, addr: Lanes, a: Lanes | tuple[Lanes, ...], *,
    space: str | None, type: ScalarType,
) -> tuple[()]:  # fmt: skip
    return _store(machine, canonical_space(space), addr, a, type)


def _stores(
    syntax: str, name: str, doc: str, *hints: str,
    shapes: tuple[dict[str, Any], ...] = _SHAPES, **keywords: Any,
) -> None:  # fmt: skip
    """Declare stores of each of the shapes; `hints` change no value."""
    known = ("vec",) if "vec" in shapes[0] else ()  # the operand is as wide as that says
    function = hinted(_st_in, doc, *known, *hints)
    for shape in shapes:
        inst(
            syntax, name=name, **keywords, **shape,
            effect=Effect.WRITE, section=f"{MOVEMENT}: st",
        )(function)  # fmt: skip


_A: Final = "[addr:u64], a*vec"
_WRITE: Final = "Write a, or the elements of the vector a, to addr on"
_ORDERED_STORE: Final[dict[str, Any]] = {"sem": ("relaxed", "release"), "scope": SCOPES}

_stores(
    f"st.weak{{.space}}{{.cop}}{{.vec}}.type {_A}", "st_weak",
    f"{_WRITE}; not ordered against other threads' accesses, just as without .weak.", "cop",
    space={**dict.fromkeys(STORE_SPACES), **_LATER_STORE_SPACES}, cop=STORE_CACHE, **_MODERN,
)  # fmt: skip
_stores(
    f"st{{.weak}}{{.space}}.evict{{.vec}}.type {_A}", "st_evict",
    f"{_WRITE}; .evict is a hint for caches.", "weak", "evict",
    **_WEAK, **_GLOBAL, evict=_EVICT,
)  # fmt: skip
_stores(
    f"st{{.weak}}{{.space}}{{.cop}}.L2::cache_hint{{.vec}}.type {_A}, policy:b64", "st_policy",
    f"{_WRITE}; .cop and the cache policy are hints for caches.", "weak", "cop", "policy",
    **_WEAK, **_GLOBAL, cop={**STORE_CACHE, **_EVICT}, **POLICY,
)  # fmt: skip
_stores(
    f"st.volatile{{.space}}{{.vec}}.type {_A}", "st_volatile",
    f"{_WRITE}, which is written each time.", space=SEEN_SPACES,
)  # fmt: skip
_stores(
    f"st.sem.scope{{.space}}{{.vec}}.type {_A}", "st_ordered",
    f"{_WRITE}, {_RACE}; accesses before a .release come earlier.", "sem", "scope",
    **_ORDERED_STORE, space=SEEN_SPACES, **_MODERN,
)  # fmt: skip
_stores(
    f"st.sem.scope{{.space}}.evict{{.vec}}.type {_A}", "st_ordered",
    f"{_WRITE}, {_RACE}; .evict is a hint for caches.", "sem", "scope", "evict",
    **_ORDERED_STORE, **_GLOBAL, evict=_EVICT, **_MODERN,
)  # fmt: skip
_stores(
    f"st.sem.scope{{.space}}{{.evict}}.L2::cache_hint{{.vec}}.type {_A}, policy:b64",
    "st_ordered", f"{_WRITE}, {_RACE}; .evict and the cache policy are hints for caches.",
    "sem", "scope", "evict", "policy", **_ORDERED_STORE, **_GLOBAL, evict=_EVICT, **POLICY,
)  # fmt: skip
_stores(
    "st.mmio.relaxed.sys{.space}.type [addr:u64], a", "st_mmio",
    "Write a to addr, a device's register, exactly once.",
    shapes=({"type": (*NARROW, *WIDE)},), **_GLOBAL, ptx=(8, 2), sm=70,
)  # fmt: skip
_stores(
    f"st{{.weak}}{{.space}}.cop.vec.type {_A}", "st_large",
    "Write the vector a of 32 bytes to addr on; .cop is a hint for caches.", "weak", "cop",
    shapes=_LARGE, **_WEAK, **_GLOBAL, cop=STORE_CACHE, **_BLACKWELL,
)  # fmt: skip
_stores(
    f"st{{.weak}}{{.space}}{{.evict}}{{.level2}}.vec.type {_A}", "st_large",
    "Write the vector a of 32 bytes to addr on; .evict and .level2 are hints for caches.",
    "weak", "evict", "level2",
    shapes=_LARGE, **_WEAK, **_GLOBAL, evict=_EVICT, level2=_EVICT_L2, **_BLACKWELL,
)  # fmt: skip

# ---------------------------------------- addresses

SPACES: Final = {
    **dict.fromkeys(("global", "shared", "const", "local")),
    "param": gate(ptx=(7, 7), sm=70),
    "param::entry": gate(ptx=(8, 3), sm=70),
    **_SHARED,
}


@inst(
    "cvta.space.u64 d, a",
    space=SPACES,
    ptx=(2, 0),
    sm=20,
    effect=Effect.ADDRESS,
    section=f"{MOVEMENT}: cvta",
)
def cvta(machine: Machine, a: Lanes, *, space: str) -> Lanes:
    """d = the generic address of the address a in space."""
    return machine.convert_address(canonical_space(space), a, to_space=False)


@inst(
    "cvta.to.space.u64 d, a", name="cvta_to", space=SPACES, ptx=(2, 0), sm=20,
    effect=Effect.ADDRESS, section=f"{MOVEMENT}: cvta",
)  # fmt: skip
def cvta_to(machine: Machine, a: Lanes, *, space: str) -> Lanes:
    """d = the address in space of the generic address a."""
    return machine.convert_address(canonical_space(space), a, to_space=True)


@inst(
    "isspacep.space p:pred, a:u64", space={**SPACES, "const": gate(ptx=(3, 1))}, ptx=(2, 0), sm=20,
    effect=Effect.ADDRESS, section=f"{MOVEMENT}: isspacep",
)  # fmt: skip
def isspacep(machine: Machine, a: Lanes, *, space: str) -> Lanes:
    """p = whether the generic address a points into space."""
    asked = "cluster" if space == "shared::cluster" else canonical_space(space)
    return machine.in_space(asked, a)


# ---------------------------------------- hints for caches


@inst(
    "prefetch.global.level [addr:u64]",
    level={
        "L1": None,
        "L2": None,
        **dict.fromkeys(("L2::evict_last", "L2::evict_normal"), gate(ptx=(7, 4), sm=80)),
    },
    ptx=(2, 0),
    sm=20,
    section=f"{MOVEMENT}: prefetch",
)
def prefetch(addr: Lanes, *, level: str) -> tuple[()]:
    """Bring the line at addr into the cache; changes no value."""
    del addr, level
    return ()


@inst(
    "prefetch.local.level [addr:u64]", name="prefetch_local", level=("L1", "L2"), ptx=(2, 0), sm=20,
    section=f"{MOVEMENT}: prefetch",
)  # fmt: skip
def prefetch_local(addr: Lanes, *, level: str) -> tuple[()]:
    """Bring the line at addr into the cache; changes no value."""
    del addr, level
    return ()


@inst(
    "prefetch.level [addr:u64]", name="prefetch_generic",
    level={
        "L1": None,
        "L2": None,
        **dict.fromkeys(("L2::evict_last", "L2::evict_normal"), gate(ptx=(7, 4), sm=80)),
    },
    ptx=(2, 0), sm=20, section=f"{MOVEMENT}: prefetch",
)  # fmt: skip
def prefetch_generic(addr: Lanes, *, level: str) -> tuple[()]:
    """Bring the line at the generic address addr into the cache; changes no value."""
    del addr, level
    return ()


@inst("prefetchu.L1 [addr:u64]", ptx=(2, 0), sm=20, section=f"{MOVEMENT}: prefetchu")
def prefetchu(addr: Lanes) -> tuple[()]:
    """Bring the line at the generic address addr into the uniform cache; changes no value."""
    del addr
    return ()


@inst(
    "applypriority{.space}.L2::evict_normal [addr:u64], 128", space=("global",), **POLICY,
    section=f"{MOVEMENT}: applypriority",
)  # fmt: skip
def applypriority(addr: Lanes, *, space: str | None) -> tuple[()]:
    """Let the 128 bytes at addr leave the cache as others do; changes no value."""
    del addr, space
    return ()


@inst(
    "discard{.space}.L2 [addr:u64], 128", space=("global",), **POLICY,
    section=f"{MOVEMENT}: discard",
)  # fmt: skip
def discard(addr: Lanes, *, space: str | None) -> tuple[()]:
    """The 128 bytes at addr need not be kept: they may hold anything from now on (here what they
    held).
    """
    del addr, space
    return ()


_PRIMARY: Final = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
_SECONDARY: Final = ("L2::evict_first", "L2::evict_unchanged")


@inst(
    "createpolicy.fractional.primary{.secondary}.b64 d{, fraction:f32}",
    name="createpolicy_fractional", primary=_PRIMARY, secondary=_SECONDARY, **POLICY,
    section=f"{MOVEMENT}: createpolicy",
)  # fmt: skip
def createpolicy_fractional(
    fraction: Lanes | None = None, *, primary: str, secondary: str | None
) -> Lanes:
    """d = a cache policy: the primary priority for a fraction of accesses, the secondary for the
    rest. Its bits are opaque; here they are 0.
    """
    del primary, secondary
    return np.zeros(np.shape(fraction if fraction is not None else 0), np.uint64)


@inst(
    "createpolicy.range{.space}.primary{.secondary}.b64 d, [addr:u64], size:u32, total:u32",
    name="createpolicy_range", space=("global",), primary=_PRIMARY, secondary=_SECONDARY, **POLICY,
    section=f"{MOVEMENT}: createpolicy",
)  # fmt: skip
def createpolicy_range(
    addr: Lanes, size: Lanes, total: Lanes, *,
    space: str | None, primary: str, secondary: str | None,
) -> Lanes:  # fmt: skip
    """d = a cache policy: the primary priority for the first size bytes at addr, the secondary for
    the rest of total bytes around. Its bits are opaque; here they are 0.
    """
    del space, primary, secondary
    return np.zeros(np.broadcast_shapes(*(np.shape(x) for x in (addr, size, total))), np.uint64)


@inst(
    "createpolicy.cvt.L2.b64 d, a", name="createpolicy_cvt", **POLICY,
    section=f"{MOVEMENT}: createpolicy",
)  # fmt: skip
def createpolicy_cvt(a: Lanes) -> Lanes:
    """d = the cache policy for the access property a of CUDA's API. Its bits are opaque; here they
    are those of a.
    """
    return a
