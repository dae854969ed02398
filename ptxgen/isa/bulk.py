"""Bulk and tensor copies (PTX ISA, "Data Movement: Bulk Asynchronous Copy").

One thread starts a copy of many bytes, of which an mbarrier or a bulk group of the thread says when
it is complete. Tensor copies move a box of a tensor that a tensor map describes
(`ptxgen.tensormap`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.async_copy import COPY
from ptxgen.isa.atomics import UPDATES
from ptxgen.isa.declare import inst
from ptxgen.isa.families import member
from ptxgen.isa.spec import Effect, Gate, gate
from ptxgen.types import ScalarType, b32, b64, bf16, f16, f32, f64, s32, s64, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

MOVEMENT: Final = "Data Movement and Conversion Instructions"
SYNCHRONIZATION: Final = "Parallel Synchronization and Communication Instructions"
PREFETCH: Final = "Data Movement and Conversion Instructions: prefetch"
_SM90: Final[dict[str, Any]] = {"ptx": (8, 0), "sm": 90}
_BULK: Final = f"{COPY}: Bulk copy"
_TENSOR: Final = f"{COPY}: Tensor copy"

# Where a copy that an mbarrier counts goes: the CTA itself has a name of its own since PTX 8.6.
_NEAR: Final[Mapping[str, Gate | None]] = {
    "shared::cluster": None,
    "shared::cta": gate(ptx=(8, 6), sm=90),
}
_FAR: Final = ("shared::cluster",)
_DIMS: Final = ("1d", "2d", "3d", "4d", "5d")
_COUNTED: Final = "mbarrier::complete_tx::bytes"
_HINTS: Final = (False, True)  # whether a cache policy is given


# The operations of reductions, and the types that they are for, in shared and in global memory.
_Choices = tuple[tuple[tuple[str, ...], tuple[ScalarType, ...]], ...]
_SHARED: Final[_Choices] = (
    (("add",), (u32, s32, u64)),
    (("min", "max"), (u32, s32)),
    (("inc", "dec"), (u32,)),
    (("and", "or", "xor"), (b32,)),
)
_GLOBAL: Final[_Choices] = (
    (("add",), (u32, s32, u64, f32, f64)),
    (("inc", "dec"), (u32,)),
    (("min", "max"), (u32, s32, u64, s64, f16, bf16)),
    (("and", "or", "xor"), (b32, b64)),
    (("add.noftz",), (f16, bf16)),
)

# What is made of the value in memory, the one that is copied there, and their type.
REDUCTIONS: Final = {
    op: UPDATES[op] for op in ("add", "min", "max", "inc", "dec", "and", "or", "xor")
}


def _syntax(opcode: str, operands: str, *, multicast: bool = False, hint: bool = False) -> str:
    """A line of the manual, with what a multicast and a cache policy add."""
    opcode += ".multicast::cluster" * multicast + ".L2::cache_hint" * hint
    return f"{opcode} {operands}{', ctas:u16' * multicast}{', policy:u64' * hint}"


def _name(base: str, *, multicast: bool = False, hint: bool = False) -> str:
    return base + "_multicast" * multicast + "_hint" * hint


def _extra(multicast: bool, hint: bool) -> list[str]:
    return ["ctas"] * multicast + ["policy"] * hint


_MULTICAST_DOC: Final = " in each CTA of the cluster in the mask ctas"

# ---------------------------------------- copies of consecutive bytes


def _load(machine: Machine, *, ctas: Lanes | None = None, **given: Any) -> tuple[()]:
    machine.bulk_load(given["dst"], given["src"], given["size"], given["mbar"], ctas)
    return ()


def _send(machine: Machine, *, op: str = "", type: ScalarType = b64, **given: Any) -> tuple[()]:
    where = given["dst"], given["src"], given["size"], given["mbar"]
    machine.bulk_send(*where, REDUCTIONS.get(op), type)
    return ()


def _store(machine: Machine, *, op: str = "", type: ScalarType = b64, **given: Any) -> tuple[()]:
    machine.bulk_store(given["dst"], given["src"], given["size"], REDUCTIONS.get(op), type)
    return ()


def _prefetch(machine: Machine, **_: object) -> tuple[()]:
    del machine  # a hint
    return ()


for _multicast, _hint in itertools.product(_HINTS, _HINTS):
    inst(
        _syntax(
            f"cp.async.bulk.to.global.{_COUNTED}",
            "[dst:u32], [src:u64], size:u32, [mbar:u32]",
            multicast=_multicast, hint=_hint,
        ),
        name=_name("cp_async_bulk_load", multicast=_multicast, hint=_hint),
        to=_FAR if _multicast else _NEAR, effect=Effect.ASYNC, section=f"{_BULK}: cp.async.bulk",
        **_SM90,
    )(
        member(
            _load,
            "Start copying size bytes from src to dst"
            + _MULTICAST_DOC * _multicast + "; the mbarrier at mbar there counts them.",
            ["dst", "src", "size", "mbar", *_extra(_multicast, _hint)], ["to"],
        )
    )  # fmt: skip

inst(
    f"cp.async.bulk.shared::cluster.shared::cta.{_COUNTED} "
    "[dst:u32], [src:u32], size:u32, [mbar:u32]",
    name="cp_async_bulk_send", effect=Effect.ASYNC, section=f"{_BULK}: cp.async.bulk", **_SM90,
)(
    member(
        _send,
        "Start copying size bytes from src to dst in a CTA of the cluster; the mbarrier at mbar "
        "there counts them.",
        ["dst", "src", "size", "mbar"],
    )
)  # fmt: skip

for _ops, _types in _SHARED:
    inst(
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{_COUNTED}.op.type "
        "[dst:u32], [src:u32], size:u32, [mbar:u32]",
        name="cp_reduce_async_bulk_send_" + _ops[0], op=_ops, type=_types, effect=Effect.ASYNC,
        section=f"{_BULK}: cp.reduce.async.bulk", **_SM90,
    )(
        member(
            _send,
            "Start combining the values in size bytes at dst, in a CTA of the cluster, with those "
            "at src; the mbarrier at mbar there counts them.",
            ["dst", "src", "size", "mbar"], ["op", "type"],
        )
    )  # fmt: skip

for _hint in _HINTS:
    inst(
        _syntax(
            "cp.async.bulk.global.shared::cta.bulk_group", "[dst:u64], [src:u32], size:u32",
            hint=_hint,
        ),
        name=_name("cp_async_bulk_store", hint=_hint), effect=Effect.ASYNC,
        section=f"{_BULK}: cp.async.bulk", **_SM90,
    )(
        member(
            _store, "Start copying size bytes from src to dst, in this thread's bulk group.",
            ["dst", "src", "size", *_extra(False, _hint)],
        )
    )  # fmt: skip
    inst(
        _syntax("cp.async.bulk.prefetch.L2.global", "[src:u64], size:u32", hint=_hint),
        name=_name("cp_async_bulk_prefetch", hint=_hint), effect=Effect.ASYNC,
        section=f"{_BULK}: cp.async.bulk.prefetch", **_SM90,
    )(
        member(
            _prefetch, "Have size bytes at src brought to the L2 cache: a hint.",
            ["src", "size", *_extra(False, _hint)],
        )
    )  # fmt: skip
    for _ops, _types in _GLOBAL:
        _plain = "." not in _ops[0]
        _chosen: dict[str, Any] = {"op": _ops} if _plain else {}
        inst(
            _syntax(
                "cp.reduce.async.bulk.global.shared::cta.bulk_group"
                + ".L2::cache_hint" * _hint + (".op.type" if _plain else ".add.noftz.type"),
                "[dst:u64], [src:u32], size:u32" + ", policy:u64" * _hint,
            ),
            name=_name("cp_reduce_async_bulk_" + _ops[0].replace(".", "_"), hint=_hint),
            type=_types, effect=Effect.ASYNC, section=f"{_BULK}: cp.reduce.async.bulk", **_SM90,
            **_chosen,
        )(
            member(
                _store if _plain else lambda machine, **given: _store(machine, op="add", **given),
                "Start combining the values in size bytes at dst with those at src, in this "
                "thread's bulk group.",
                ["dst", "src", "size", *_extra(False, _hint)], [*_chosen, "type"],
            )
        )  # fmt: skip


# ---------------------------------------- values of registers


def _send_values(
    machine: Machine, *, op: str = "", type: ScalarType, vec: str | None = None,
    weak: bool = False, **given: Any,
) -> tuple[()]:  # fmt: skip
    del weak  # the only one of its orders
    values = given["a"] if vec else (given["a"],)
    machine.send_values(given["dst"], values, given["mbar"], REDUCTIONS.get(op), type)
    return ()


for _ops, _types in _SHARED:
    inst(
        f"red.async.relaxed.cluster.shared::cluster.{_COUNTED}.op.type "
        "[dst:u32], a, [mbar:u32]",
        name="red_async_" + _ops[0], op=_ops, type=_types, effect=Effect.ASYNC, ptx=(8, 1), sm=90,
        section=f"{SYNCHRONIZATION}: red.async",
    )(
        member(
            _send_values,
            "Start combining the value at dst, in a CTA of the cluster, with a; the mbarrier at "
            "mbar there counts the bytes.", ["dst", "a", "mbar"], ["op", "type"],
        )
    )  # fmt: skip

for _vectors, _types in ((("v2", "v4"), (b32, u32, s32, f32)), (("v2",), (b64, u64, s64, f64))):
    inst(
        f"st.async{{.weak}}.shared::cluster.{_COUNTED}{{.vec}}.type [dst:u32], a*vec, [mbar:u32]",
        name="st_async", vec=_vectors, type=_types, effect=Effect.ASYNC, ptx=(8, 1), sm=90,
        section=f"{MOVEMENT}: st.async",
    )(
        member(
            _send_values,
            "Start writing a to dst in a CTA of the cluster; the mbarrier at mbar there counts the "
            "bytes.", ["dst", "a", "mbar"], ["weak", "vec", "type"],
        )
    )  # fmt: skip


# ---------------------------------------- copies of boxes of tensors


def _tensor_load(machine: Machine, *, ctas: Lanes | None = None, **given: Any) -> tuple[()]:
    address, coordinates = given["map"]
    machine.tensor_load(given["dst"], address, coordinates, given["mbar"], ctas)
    return ()


def _tensor_store(machine: Machine, *, op: str = "", **given: Any) -> tuple[()]:
    address, coordinates = given["map"]
    machine.tensor_store(address, coordinates, given["src"], REDUCTIONS.get(op))
    return ()


for _multicast, _hint in itertools.product(_HINTS, _HINTS):
    inst(
        _syntax(
            f"cp.async.bulk.tensor.dim.to.global{{.tile}}.{_COUNTED}",
            "[dst:u32], [map:u64*dim], [mbar:u32]", multicast=_multicast, hint=_hint,
        ),
        name=_name("cp_async_bulk_tensor_load", multicast=_multicast, hint=_hint),
        dim=_DIMS, to=_FAR if _multicast else _NEAR, effect=Effect.ASYNC,
        section=f"{_TENSOR}: cp.async.bulk.tensor", **_SM90,
    )(
        member(
            _tensor_load,
            "Start copying the box at the map's coordinates to dst" + _MULTICAST_DOC * _multicast
            + "; the mbarrier at mbar there counts the bytes of the whole box.",
            ["dst", "map", "mbar", *_extra(_multicast, _hint)], ["dim", "to", "tile"],
        )
    )  # fmt: skip

for _hint in _HINTS:
    inst(
        _syntax(
            "cp.async.bulk.tensor.dim.global.shared::cta{.tile}.bulk_group",
            "[map:u64*dim], [src:u32]", hint=_hint,
        ),
        name=_name("cp_async_bulk_tensor_store", hint=_hint), dim=_DIMS, effect=Effect.ASYNC,
        section=f"{_TENSOR}: cp.async.bulk.tensor", **_SM90,
    )(
        member(
            _tensor_store,
            "Start copying from src what of the box at the map's coordinates is inside the tensor, "
            "in this thread's bulk group.",
            ["map", "src", *_extra(False, _hint)], ["dim", "tile"],
        )
    )  # fmt: skip
    inst(
        _syntax(
            "cp.reduce.async.bulk.tensor.dim.global.shared::cta.op{.tile}.bulk_group",
            "[map:u64*dim], [src:u32]", hint=_hint,
        ),
        name=_name("cp_reduce_async_bulk_tensor", hint=_hint), dim=_DIMS, op=tuple(REDUCTIONS),
        effect=Effect.ASYNC, section=f"{_TENSOR}: cp.reduce.async.bulk.tensor", **_SM90,
    )(
        member(
            _tensor_store,
            "Start combining the box at the map's coordinates with the one at src, in this "
            "thread's bulk group.",
            ["map", "src", *_extra(False, _hint)], ["dim", "op", "tile"],
        )
    )  # fmt: skip
    inst(
        _syntax(
            "cp.async.bulk.prefetch.tensor.dim.L2.global{.tile}", "[map:u64*dim]", hint=_hint
        ),
        name=_name("cp_async_bulk_prefetch_tensor", hint=_hint), dim=_DIMS, effect=Effect.ASYNC,
        section=f"{_TENSOR}: cp.async.bulk.prefetch.tensor", **_SM90,
    )(
        member(
            _prefetch, "Have the box at the map's coordinates brought to the L2 cache: a hint.",
            ["map", *_extra(False, _hint)], ["dim", "tile"],
        )
    )  # fmt: skip


@inst(
    "prefetch{.space}.tensormap [addr:u64]", name="prefetch_tensormap", space=("param", "const"),
    effect=Effect.ASYNC, section=PREFETCH, **_SM90,
)  # fmt: skip
def prefetch_tensormap(machine: Machine, addr: Lanes, *, space: str | None) -> tuple[()]:
    """Have the tensor map at addr brought near: a hint."""
    del machine, addr, space
    return ()


# ---------------------------------------- bulk groups


@inst(
    "cp.async.bulk.commit_group", name="cp_async_bulk_commit_group", effect=Effect.ASYNC,
    section=f"{_BULK}: cp.async.bulk.commit_group", **_SM90,
)  # fmt: skip
def cp_async_bulk_commit_group(machine: Machine) -> tuple[()]:
    """Make one bulk group of all bulk copies to global memory that this thread started since the
    last one.
    """
    machine.bulk_commit()
    return ()


@inst(
    "cp.async.bulk.wait_group{.read} n:imm", name="cp_async_bulk_wait_group", effect=Effect.ASYNC,
    section=f"{_BULK}: cp.async.bulk.wait_group", **_SM90,
)  # fmt: skip
def cp_async_bulk_wait_group(machine: Machine, n: int, *, read: bool) -> tuple[()]:
    """Wait until at most the n newest bulk groups of this thread are still under way; with .read,
    only until the others have read their sources.
    """
    machine.bulk_wait(n, read)
    return ()
