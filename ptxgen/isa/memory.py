"""Data movement and memory (PTX ISA, "Data Movement and Conversion Instructions").

Every address operand is declared u64; an address in shared memory may also be in a 32-bit register,
and the users of the table accept either. Without a state space an address is generic.

Cache operators, eviction priorities, prefetch sizes and cache policies change no value. The
interpreter's memory is sequentially consistent, so `.weak`, `.volatile`, `.relaxed`, `.acquire` and
`.release` accesses are all the same here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.declare import Table, each, inst, times
from ptxgen.isa.spec import Effect, gate
from ptxgen.isa.undefined import moves
from ptxgen.types import b8, b16, b32, b64, b128, f32, f64, s8, s16, s32, s64, u8, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine
    from ptxgen.types import ScalarType

MOVEMENT: Final = "Data Movement and Conversion Instructions"
_SHORT: Final = (b16, u16, s16, b8, u8, s8)
_WORDS: Final = (f32, b32, u32, s32)
NARROW: Final = (*_WORDS, *_SHORT)  # up to four in one 16-byte access
WIDE: Final = (b64, u64, s64, f64)  # up to two in one 16-byte access
FERMI: Final = gate(ptx=(2, 0), sm=20)
LOAD_CACHE: Final = dict.fromkeys(("ca", "cg", "cs", "lu", "cv"), FERMI)
STORE_CACHE: Final = dict.fromkeys(("wb", "cg", "cs", "wt"), FERMI)
GENERIC: Final = "generic"

# Later spellings of state spaces, and what they need.
CTA: Final = gate(ptx=(7, 8), sm=30)
CLUSTER: Final = gate(ptx=(7, 8), sm=90)
_PARAMETER: Final = gate(ptx=(8, 3), sm=10)
_SHARED: Final = {"shared::cta": CTA, "shared::cluster": CLUSTER}
LOAD_SPACES: Final = ("global", "shared", "param", "const", "local")
STORE_SPACES: Final = ("global", "shared", "local")
_LATER_LOAD_SPACES: Final = {**_SHARED, "param::entry": _PARAMETER, "param::func": _PARAMETER}
_LATER_STORE_SPACES: Final = {**_SHARED, "param": None, "param::func": _PARAMETER}
# Spaces that other threads may access, in which an access can be volatile or ordered.
SEEN_SPACES: Final = {"global": None, "shared": None, **_SHARED}

_VOLTA: Final = gate(ptx=(6, 0), sm=70)
SCOPES: Final = {"cta": None, "gpu": None, "sys": None, "cluster": CLUSTER}
# `no_allocate` first, because generated kernels use it.
_EVICT: Final = dict.fromkeys(
    ("L1::no_allocate", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last"),
    gate(ptx=(7, 4), sm=70),
)
_PREFETCH: Final = {
    "L2::64B": gate(ptx=(7, 4), sm=75),
    "L2::128B": gate(ptx=(7, 4), sm=75),
    "L2::256B": gate(ptx=(7, 4), sm=80),
}
_EVICT_L2: Final = ("L2::evict_normal", "L2::evict_first", "L2::evict_last")
POLICY: Final[dict[str, Any]] = {"ptx": (7, 4), "sm": 80}  # the needs of .L2::cache_hint

_CANONICAL: Final = {
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "param::entry": "param",
    "param::func": "param",
    None: GENERIC,
}


def canonical_space(space: str | None) -> str:
    """The name that `Machine` has for a state space in PTX; None is an access without a space."""
    return _CANONICAL.get(space) or str(space)


# ---------------------------------------- ld and st

_GLOBAL: Final = ("global",)
_ANY_LOAD_SPACE: Final = {**dict.fromkeys(LOAD_SPACES), **_LATER_LOAD_SPACES}
_ANY_STORE_SPACE: Final = {**dict.fromkeys(STORE_SPACES), **_LATER_STORE_SPACES}
# Slots of loads and stores, and modifiers that change no value.
_ACCESS: Final[dict[str, Any]] = {
    "scope": SCOPES,
    "weak": {True: _VOLTA},
    "evict": _EVICT,
    "level2": _EVICT_L2,
    "policy": "",
    "ignores": ("weak", "cop", "evict", "prefetch", "level2", "policy", "sem", "scope", "vec"),
}
# Legal combinations of the slots `vec` and `type`, with the additional needs of a form.
_SHAPES: Final = each("vec type", (("v2", "v4"), NARROW), (("v2",), WIDE))  # up to 16 bytes
_MODERN: Final = times(each("ptx sm", ((6, 0), 70)), _SHAPES)
_WEAK: Final = times(each("weak", "weak"), _MODERN)
_HINTED: Final = times(each("policy ptx sm", (", policy:b64", (7, 4), 80)), _SHAPES)
_B128: Final = gate(ptx=(8, 3), sm=70)
SYSTEM_128: Final = gate(ptx=(8, 4))  # what 128 bits in the scope of the system need in addition
_MMIO: Final = each("type ptx sm", ({**dict.fromkeys((*NARROW, *WIDE)), b128: SYSTEM_128}, (8, 2), 70))
_LARGE: Final = each("vec type ptx sm", (("v8",), _WORDS, (8, 8), 100), (("v4",), WIDE, (8, 8), 100))
_KEPLER: Final = times(each("ptx sm", ((3, 1), 32)), _SHAPES)
_NC: Final = each("space page", ("global", "ld.global.nc"))
_NC_CACHE: Final = ("ca", "cg", "cs")

_COP: Final = "; .cop is a hint for caches"
_UNORDERED: Final = "; not ordered against other threads' accesses, just as without .weak"
_RACE: Final = ", as an access that may race with others of the threads of the scope"
_CONSTANT: Final = ", which no thread writes while the kernel runs"
_32_BYTES: Final = "the vector of 32 bytes"


def _wholes(table: Table, **single: str) -> Table:
    """The forms with vectors, for a single value of 128 bits in place of a vector."""
    forms = [line for line in table if "{.vec}" in line["form"] and line["vec"] == _SHAPES[0]["vec"]]
    return [
        {
            **line,
            **single,
            "form": line["form"].replace("{.vec}", ""),
            "vec": None,
            "type": {b128: _B128},
            "scope": {**SCOPES, "sys": SYSTEM_128},
        }
        for line in forms
    ]


_LOADS: Final = (
    times(
        _SHAPES,
        each(
            "name form space ptx sm where",
            ("ld", "ld.space{.cop}{.vec}", LOAD_SPACES, None, None, None),
            ("ld", "ld.space{.cop}{.vec}", _LATER_LOAD_SPACES, None, None, None),
            ("ld_generic", "ld{.cop}{.vec}", None, (2, 0), 20, "the generic address addr"),
        ),
    )
    + each(
        "name form space also rest",
        ("ld_weak", "ld.weak{.space}{.cop}{.vec}", _ANY_LOAD_SPACE, _WEAK, _UNORDERED),
        (
            "ld_evict",
            "ld{.weak}{.space}.evict{.prefetch}{.vec}",
            _GLOBAL,
            _SHAPES,
            "; .evict and .prefetch are hints for caches",
        ),
        (
            "ld_prefetch",
            "ld{.weak}{.space}{.cop}.prefetch{.vec}",
            _GLOBAL,
            _SHAPES,
            "; .cop and .prefetch are hints for caches",
        ),
        (
            "ld_policy",
            "ld{.weak}{.space}{.cop}.L2::cache_hint{.prefetch}{.vec}",
            _GLOBAL,
            times(each("cop", {**LOAD_CACHE, **_EVICT}), _HINTED),
            "; .cop, .prefetch and the cache policy are hints for caches",
        ),
        ("ld_volatile", "ld.volatile{.space}{.vec}", SEEN_SPACES, _SHAPES, ", which is read each time"),
        (
            "ld_volatile",
            "ld.volatile{.space}.prefetch{.vec}",
            _GLOBAL,
            _SHAPES,
            ", which is read each time; .prefetch is a hint for caches",
        ),
        (
            "ld_ordered",
            "ld.sem.scope{.space}{.vec}",
            SEEN_SPACES,
            _MODERN,
            f"{_RACE}; accesses after an .acquire come later",
        ),
        (
            "ld_ordered",
            "ld.sem.scope{.space}.evict{.prefetch}{.vec}",
            _GLOBAL,
            _MODERN,
            f"{_RACE}; .evict and .prefetch are hints for caches",
        ),
        (
            "ld_ordered",
            "ld.sem.scope{.space}.prefetch{.vec}",
            _GLOBAL,
            _MODERN,
            f"{_RACE}; .prefetch is a hint for caches",
        ),
        (
            "ld_ordered",
            "ld.sem.scope{.space}{.evict}.L2::cache_hint{.vec}",
            _GLOBAL,
            _HINTED,
            f"{_RACE}; .evict and the cache policy are hints for caches",
        ),
        (
            "ld_mmio",
            "ld.mmio.relaxed.sys{.space}",
            _GLOBAL,
            times(each("d what", ("d", "the value")), _MMIO),
            ", a device's register, which is read exactly once",
        ),
    )
    + times(
        each("what", _32_BYTES),
        each(
            "name form space also rest",
            ("ld_large", "ld{.weak}{.space}.cop.vec", _GLOBAL, _LARGE, _COP),
            (
                "ld_large",
                "ld{.weak}{.space}{.evict}{.level2}.vec",
                _GLOBAL,
                _LARGE,
                "; .evict and .level2 are hints for caches",
            ),
        ),
    )
    + times(
        _NC,
        each("rest", _CONSTANT),
        each(
            "name form cop also",
            ("ld_nc", "ld.global.nc{.evict}{.prefetch}{.vec}", None, _KEPLER),
            ("ld_nc", "ld.global.cop.nc{.prefetch}{.vec}", _NC_CACHE, _KEPLER),
            ("ld_nc_policy", "ld.global.nc{.evict}.L2::cache_hint{.prefetch}{.vec}", None, _HINTED),
            ("ld_nc_policy", "ld.global.cop.nc.L2::cache_hint{.prefetch}{.vec}", _NC_CACHE, _HINTED),
            (
                "ld_nc_large",
                "ld.global.nc{.evict}{.level2}.vec",
                None,
                times(each("what", _32_BYTES), _LARGE),
            ),
        ),
    )
    + each(
        "name form space also rest",
        (
            "ldu",
            "ldu{.space}{.vec}",
            _GLOBAL,
            times(each("page ptx sm", ("ldu", (2, 0), 20)), _SHAPES),
            ", which is the same for all threads of the warp and is only read",
        ),
    )
)


@inst(
    "<form>.type <d>, [addr:u64]<policy>",
    _LOADS + _wholes(_LOADS, d="d", what="the value"),
    d="d*vec",
    cop=LOAD_CACHE,
    prefetch=_PREFETCH,
    sem=("relaxed", "acquire"),
    page="ld",
    what="the value, or the vector of consecutive values,",
    where="addr",
    rest=_COP,
    effect=Effect.READ,
    undefined=moves(),
    section=f"{MOVEMENT}: <page>",
    **_ACCESS,
)
def ld(
    machine: Machine, addr: Lanes, *, space: str | None = None, vec: str | None = None, type: ScalarType
) -> Any:
    """d = <what> at <where><rest>."""
    values = machine.load(canonical_space(space), addr, type, int(vec[1:]) if vec else 1)
    return values if vec else values[0]


_STORES: Final = (
    times(
        _SHAPES,
        each(
            "name form space ptx sm where",
            ("st", "st.space{.cop}{.vec}", STORE_SPACES, None, None, None),
            ("st", "st.space{.cop}{.vec}", _LATER_STORE_SPACES, None, None, None),
            ("st_generic", "st{.cop}{.vec}", None, (2, 0), 20, "the generic address addr on"),
        ),
    )
    + each(
        "name form space also rest",
        ("st_weak", "st.weak{.space}{.cop}{.vec}", _ANY_STORE_SPACE, _WEAK, _UNORDERED),
        ("st_evict", "st{.weak}{.space}.evict{.vec}", _GLOBAL, _SHAPES, "; .evict is a hint for caches"),
        (
            "st_policy",
            "st{.weak}{.space}{.cop}.L2::cache_hint{.vec}",
            _GLOBAL,
            times(each("cop", {**STORE_CACHE, **_EVICT}), _HINTED),
            "; .cop and the cache policy are hints for caches",
        ),
        ("st_volatile", "st.volatile{.space}{.vec}", SEEN_SPACES, _SHAPES, ", which is written each time"),
        (
            "st_ordered",
            "st.sem.scope{.space}{.vec}",
            SEEN_SPACES,
            _MODERN,
            f"{_RACE}; accesses before a .release come earlier",
        ),
        (
            "st_ordered",
            "st.sem.scope{.space}.evict{.vec}",
            _GLOBAL,
            _MODERN,
            f"{_RACE}; .evict is a hint for caches",
        ),
        (
            "st_ordered",
            "st.sem.scope{.space}{.evict}.L2::cache_hint{.vec}",
            _GLOBAL,
            _HINTED,
            f"{_RACE}; .evict and the cache policy are hints for caches",
        ),
        (
            "st_mmio",
            "st.mmio.relaxed.sys{.space}",
            _GLOBAL,
            times(each("a what where", ("a", "a", "addr")), _MMIO),
            ", a device's register, exactly once",
        ),
    )
    + times(
        each("what", "the vector a of 32 bytes"),
        each(
            "name form space also rest",
            ("st_large", "st{.weak}{.space}.cop.vec", _GLOBAL, _LARGE, _COP),
            (
                "st_large",
                "st{.weak}{.space}{.evict}{.level2}.vec",
                _GLOBAL,
                _LARGE,
                "; .evict and .level2 are hints for caches",
            ),
        ),
    )
)


@inst(
    "<form>.type [addr:u64], <a><policy>",
    _STORES + _wholes(_STORES, a="a", what="a"),
    a="a*vec",
    cop=STORE_CACHE,
    sem=("relaxed", "release"),
    what="a, or the elements of the vector a,",
    where="addr on",
    rest=_COP,
    effect=Effect.WRITE,
    undefined=moves("a"),
    section=f"{MOVEMENT}: st",
    **_ACCESS,
)
def st(
    machine: Machine, addr: Lanes, a: Lanes | tuple[Lanes, ...], *, space: str | None = None, type: ScalarType
) -> tuple[()]:
    """Write <what> to <where><rest>."""
    machine.store(canonical_space(space), addr, type, a if isinstance(a, tuple) else (a,))
    return ()


# ---------------------------------------- addresses

SPACES: Final = {
    **dict.fromkeys(("global", "shared", "const", "local")),
    "param": gate(ptx=(7, 7), sm=70),
    "param::entry": gate(ptx=(8, 3), sm=70),
    **_SHARED,
}


@inst(
    "cvta.space.u64 d, a", space=SPACES, ptx=(2, 0), sm=20, effect=Effect.ADDRESS, section=f"{MOVEMENT}: cvta"
)
def cvta(machine: Machine, a: Lanes, *, space: str) -> Lanes:
    """d = the generic address of the address a in space."""
    return machine.convert_address(canonical_space(space), a, to_space=False)


@inst(
    "cvta.to.space.u64 d, a",
    name="cvta_to",
    space=SPACES,
    ptx=(2, 0),
    sm=20,
    effect=Effect.ADDRESS,
    section=f"{MOVEMENT}: cvta",
)
def cvta_to(machine: Machine, a: Lanes, *, space: str) -> Lanes:
    """d = the address in space of the generic address a."""
    return machine.convert_address(canonical_space(space), a, to_space=True)


@inst(
    "isspacep.space p:pred, a:u64",
    space={**SPACES, "const": gate(ptx=(3, 1))},
    ptx=(2, 0),
    sm=20,
    effect=Effect.ADDRESS,
    section=f"{MOVEMENT}: isspacep",
)
def isspacep(machine: Machine, a: Lanes, *, space: str) -> Lanes:
    """p = whether the generic address a points into space."""
    asked = "cluster" if space == "shared::cluster" else canonical_space(space)
    return machine.in_space(asked, a)
