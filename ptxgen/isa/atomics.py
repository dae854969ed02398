"""Atomic operations, reductions in memory, fences (PTX ISA, "Parallel Synchronization").

Lanes that meet at one address take turns, in rising order; what comes of that is found for all of
them at once, where it can be (`ptxgen.isa.atomic_scans`). The elements of a vector are updated one
by one, each in one step, as the manual says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric, numeric_f64
from ptxgen.isa.atomic_scans import scan_of, swapped
from ptxgen.isa.declare import inst
from ptxgen.isa.memory import CLUSTER, CTA, POLICY, canonical_space, hinted
from ptxgen.isa.spec import Effect, gate
from ptxgen.types import (
    TYPES,
    b16,
    b32,
    b64,
    bf16,
    bf16x2,
    f16,
    f16x2,
    f32,
    f64,
    s32,
    s64,
    u32,
    u64,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.isa.machine import Lanes, Machine
    from ptxgen.types import ScalarType

SYNCHRONIZATION: Final = "Parallel Synchronization and Communication Instructions"

_VOLTA: Final = gate(ptx=(6, 0), sm=70)
SEMANTICS: Final = dict.fromkeys(("relaxed", "acquire", "release", "acq_rel"), _VOLTA)
RED_SEMANTICS: Final = dict.fromkeys(("relaxed", "release"), _VOLTA)
_PASCAL: Final = gate(ptx=(5, 0), sm=60)
SCOPES: Final = {"cta": _PASCAL, "gpu": _PASCAL, "sys": _PASCAL, "cluster": CLUSTER}
ATOMIC_SPACES: Final = {
    "global": None,
    "shared": None,
    "shared::cta": CTA,
    "shared::cluster": CLUSTER,
}
_KEPLER: Final = gate(ptx=(3, 1), sm=32)
_FERMI: Final = gate(ptx=(2, 0), sm=20)
_ATOMIC: Final = gate(ptx=(1, 2), sm=12)

ADDABLE: Final = {u32: None, s32: None, u64: _ATOMIC, f32: _FERMI, f64: _PASCAL}
ORDERABLE: Final = {u32: None, s32: None, u64: _KEPLER, s64: _KEPLER}
LOGICAL: Final = {b32: None, b64: _KEPLER}
EXCHANGED: Final = {b32: None, b64: _ATOMIC}
HALF_ADDABLE: Final = {
    f16x2: gate(ptx=(6, 2), sm=60),
    f16: gate(ptx=(6, 3), sm=70),
    bf16: gate(ptx=(7, 8), sm=90),
    bf16x2: gate(ptx=(7, 8), sm=90),
}

# ---------------------------------------- what happens to the value


def _added(old: Lanes, b: Lanes, type: ScalarType) -> Lanes:
    """old + b; f32 flushes subnormals in global memory only on some GPUs, so they are kept here."""
    if type.bits == 16:
        return numeric.canonical_narrow(numeric.add_narrow(old, b, type))
    if type is f32:
        return numeric.canonical(numeric.add_f32(old, b, "rn"))
    return numeric_f64.add_f64(old, b, "rn") if type is f64 else np.add(old, b)


def _smaller(old: Lanes, b: Lanes, type: ScalarType) -> Lanes:
    if type.is_integer:
        return np.minimum(old, b)
    return numeric.canonical_narrow(numeric.minimum(old, b, nan=False))


def _larger(old: Lanes, b: Lanes, type: ScalarType) -> Lanes:
    if type.is_integer:
        return np.maximum(old, b)
    return numeric.canonical_narrow(numeric.maximum(old, b, nan=False))


# The new value of an address from the old one, the operand and their type.
UPDATES: Final[dict[str, Callable[[Lanes, Lanes, ScalarType], Lanes]]] = {
    "add": _added,
    "min": _smaller,
    "max": _larger,
    "and": lambda old, b, _: np.bitwise_and(old, b),
    "or": lambda old, b, _: np.bitwise_or(old, b),
    "xor": lambda old, b, _: np.bitwise_xor(old, b),
    "exch": lambda old, b, _: np.broadcast_to(b, old.shape).astype(old.dtype),
    "inc": lambda old, b, _: np.where(old >= b, np.uint32(0), np.add(old, np.uint32(1))),
    "dec": lambda old, b, _: np.where((old == 0) | (old > b), b, np.subtract(old, np.uint32(1))),
}


def _updated(op: str, type: ScalarType) -> Callable[[Lanes, Lanes], Lanes]:
    """The new value in memory from the old one and the operand; the halves of a pair each for
    itself.
    """
    update = UPDATES[op]
    if type.kind != "x":
        return lambda old, b: update(old, b, type)
    half = TYPES[type.name.removesuffix("x2")]

    def both(old: Lanes, b: Lanes) -> Lanes:
        pairs = zip(numeric.halves(old, half), numeric.halves(b, half), strict=True)
        return numeric.join(*(update(x, y, half) for x, y in pairs))

    return both


def _exchanged_if_equal(old: Lanes, b: Lanes, c: Lanes) -> Lanes:
    return np.where(old == b, c, old)


# ---------------------------------------- atom and red


def _atom(
    machine: Machine, addr: Lanes, b: Lanes, *, space: str | None, op: str, type: ScalarType
) -> Lanes:
    update, scan = _updated(op, type), scan_of(op, type)
    return machine.atomic(canonical_space(space), addr, type, update, (b,), scan=scan)


def _red(
    machine: Machine, addr: Lanes, b: Lanes, *, space: str | None, op: str, type: ScalarType
) -> tuple[()]:
    _atom(machine, addr, b, space=space, op=op, type=type)
    return ()


def _atom_vector(
    machine: Machine, addr: Lanes, b: tuple[Lanes, ...], *,
    space: str | None, op: str, type: ScalarType,
) -> tuple[Lanes, ...]:  # fmt: skip
    first = np.asarray(addr)
    return tuple(
        _atom(
            machine, first + first.dtype.type(n * type.nbytes), element,
            space=space, op=op, type=type,
        )
        for n, element in enumerate(b)
    )  # fmt: skip


def _red_vector(
    machine: Machine, addr: Lanes, b: tuple[Lanes, ...], *,
    space: str | None, op: str, type: ScalarType,
) -> tuple[()]:  # fmt: skip
    _atom_vector(machine, addr, b, space=space, op=op, type=type)
    return ()


_ATOM: Final[dict[str, Any]] = {"sem": SEMANTICS, "scope": SCOPES}
_RED: Final[dict[str, Any]] = {"sem": RED_SEMANTICS, "scope": SCOPES}
_ANY_SPACE: Final[dict[str, Any]] = {"space": ATOMIC_SPACES}
_GLOBAL: Final[dict[str, Any]] = {"space": ("global",)}
_STEP: Final = "becomes op(old, b) in one step (inc: 0 from b on; dec: b from 0 and above b)."
_SUM: Final = "becomes old + b in one step (each half of a pair for itself)."
_EACH: Final = "becomes op(old, b) of its own, each in one step."


def _declare(syntax: str, doc: str, *hints: str, fixed: Any = None, **keywords: Any) -> None:
    """Declare `syntax` as an operation that gives the old value, and as one that gives nothing.

    `doc` says what happens to the value; `hints` and `fixed` are as for `hinted`.
    """
    modifiers, _, operands = syntax.partition(" ")
    vector = "vec" in keywords
    given = "d*vec, " if vector else "d, "
    for head, order, meaning in (
        ("atom", _ATOM, _atom_vector if vector else _atom),
        ("red", _RED, _red_vector if vector else _red),
    ):
        if head == "red" and keywords.get("op") == ("exch",):
            continue
        subject = "d = the old value at addr, which" if head == "atom" else "The value at addr"
        inst(
            f"{head}{{.sem}}{{.scope}}{modifiers} {given if head == 'atom' else ''}{operands}",
            name=head, **order, **keywords,
            effect=Effect.ATOMIC, section=f"{SYNCHRONIZATION}: {head}",
        )(hinted(meaning, f"{subject} {doc}", "sem", "scope", *hints, **(fixed or {})))  # fmt: skip


_GENERIC: Final = {"space": None}
for _ops, _types in (
    (("add",), ADDABLE),
    (("min", "max"), ORDERABLE),
    (("inc", "dec"), {u32: None}),
    (("and", "or", "xor"), LOGICAL),
    (("exch",), EXCHANGED),
):
    _choices: dict[str, Any] = {"op": _ops, "type": _types}
    _declare(".space.op.type [addr:u64], b", _STEP, **_ANY_SPACE, **_choices, ptx=(1, 1), sm=11)
    _declare(".op.type [addr:u64], b", _STEP, fixed=_GENERIC, **_choices, ptx=(2, 0), sm=20)
    _declare(
        "{.space}.op.L2::cache_hint.type [addr:u64], b, policy:b64", _STEP, "policy",
        **_GLOBAL, **_choices, **POLICY,
    )  # fmt: skip

_declare(
    ".space.add.noftz.type [addr:u64], b", _SUM, fixed={"op": "add"},
    **_ANY_SPACE, type=HALF_ADDABLE,
)  # fmt: skip
_declare(".add.noftz.type [addr:u64], b", _SUM, fixed={"op": "add", **_GENERIC}, type=HALF_ADDABLE)
_declare(
    "{.space}.add.noftz.L2::cache_hint.type [addr:u64], b, policy:b64", _SUM, "policy",
    fixed={"op": "add"}, **_GLOBAL, type=HALF_ADDABLE, **POLICY,
)  # fmt: skip

_MINMAX: Final = ("add", "min", "max")
for _name, _choices in (
    ("op", {"op": ("add",), "vec": ("v2", "v4"), "type": (f32,)}),
    ("op.noftz", {"op": _MINMAX, "vec": ("v2", "v4", "v8"), "type": (f16, bf16)}),
    ("op.noftz", {"op": _MINMAX, "vec": ("v2", "v4"), "type": (f16x2, bf16x2)}),
):
    _declare(
        f"{{.space}}.{_name}.vec.type [addr:u64], b*vec", _EACH, "vec",
        **_GLOBAL, **_choices, ptx=(8, 1), sm=90,
    )  # fmt: skip
    _declare(
        f"{{.space}}.{_name}.L2::cache_hint.vec.type [addr:u64], b*vec, policy:b64", _EACH,
        "vec", "policy", **_GLOBAL, **_choices, ptx=(8, 1), sm=90,
    )  # fmt: skip


def _atom_cas(
    machine: Machine, addr: Lanes, b: Lanes, c: Lanes, *, space: str | None, type: ScalarType
) -> Lanes:
    update = _exchanged_if_equal
    return machine.atomic(canonical_space(space), addr, type, update, (b, c), scan=swapped)


_SWAP: Final = "d = the old value at addr, which becomes c in one step if it was b."
_COMPARED: Final = {**EXCHANGED, b16: gate(ptx=(6, 3), sm=70)}
inst(
    "atom{.sem}{.scope}.space.cas.type d, [addr:u64], b, c", name="atom_cas",
    **_ATOM, **_ANY_SPACE, type=_COMPARED, ptx=(1, 1), sm=11,
    effect=Effect.ATOMIC, section=f"{SYNCHRONIZATION}: atom",
)(hinted(_atom_cas, _SWAP, "sem", "scope"))  # fmt: skip
inst(
    "atom{.sem}{.scope}.cas.type d, [addr:u64], b, c", name="atom_cas",
    **_ATOM, type=_COMPARED, ptx=(2, 0), sm=20,
    effect=Effect.ATOMIC, section=f"{SYNCHRONIZATION}: atom",
)(hinted(_atom_cas, _SWAP, "sem", "scope", **_GENERIC))  # fmt: skip

# ---------------------------------------- fences

_FENCE_SCOPES: Final = {"cta": None, "gpu": None, "sys": None, "cluster": CLUSTER}


@inst(
    "membar.level", level={"cta": None, "gl": None, "sys": gate(ptx=(2, 0), sm=20)}, ptx=(1, 4),
    effect=Effect.FENCE, section=f"{SYNCHRONIZATION}: membar",
)  # fmt: skip
def membar(machine: Machine, *, level: str) -> tuple[()]:
    """Order this thread's memory accesses before it against those after it, for the block, the GPU
    (gl) or the system.
    """
    machine.fence("gpu" if level == "gl" else level)
    return ()


@inst(
    "fence.sem.scope", sem=("acq_rel", "sc", "acquire", "release"), scope=_FENCE_SCOPES,
    ptx=(6, 0), sm=70, effect=Effect.FENCE, section=f"{SYNCHRONIZATION}: membar",
)  # fmt: skip
def fence(machine: Machine, *, sem: str, scope: str) -> tuple[()]:
    """Order this thread's memory accesses before it against those after it, for all threads of the
    scope.
    """
    del sem  # the interpreter's memory is sequentially consistent
    machine.fence(scope)
    return ()


@inst(
    "fence.scope", scope=_FENCE_SCOPES, ptx=(6, 0), sm=70,
    effect=Effect.FENCE, section=f"{SYNCHRONIZATION}: membar",
)  # fmt: skip
def fence_default(machine: Machine, *, scope: str) -> tuple[()]:
    """Order this thread's memory accesses before it against those after it, for all threads of the
    scope.
    """
    machine.fence(scope)
    return ()


def _fence_restricted(machine: Machine) -> tuple[()]:
    """Order this thread's accesses to the shared memory that the modifier names before it against
    those after it, for all threads of the cluster.
    """
    machine.fence("cluster")
    return ()


for _kind in ("acquire.sync_restrict::shared::cluster", "release.sync_restrict::shared::cta"):
    inst(
        f"fence.{_kind}.cluster", name=f"fence_{_kind[:7]}_restricted", ptx=(8, 6), sm=90,
        effect=Effect.FENCE, section=f"{SYNCHRONIZATION}: membar",
    )(_fence_restricted)  # fmt: skip
