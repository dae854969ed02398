"""mbarrier, bulk copy, cluster, wgmma and tcgen05 rows: meanings for `cases.py`, by syntax."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from ptxgen.isa.bulk import REDUCTIONS
from ptxgen.types import b64

MASK = 0xFFFFFFFF
CANCELLED = "clusterlaunchcontrol.query_cancel"
MEANING: dict[str, Callable[..., Any]] = {
    "mbarrier.pending_count.b64 d:u32, a:b64": lambda _, a: a % 2**20,
    f"{CANCELLED}.is_canceled.pred.b128 p:pred, a": lambda _, a: a >> 96 & 1 == 1,
    f"{CANCELLED}.get_first_ctaid.v4.b32.b128 d:b32*4, a": lambda _, a: (
        *(a >> n & MASK for n in (0, 32, 64)),
        0,
    ),
    f"{CANCELLED}.get_first_ctaid::x.b32.b128 d:b32, a": lambda _, a: a & MASK,
    f"{CANCELLED}.get_first_ctaid::y.b32.b128 d:b32, a": lambda _, a: a >> 32 & MASK,
    f"{CANCELLED}.get_first_ctaid::z.b32.b128 d:b32, a": lambda _, a: a >> 64 & MASK,
}
MEMORY: dict[str, Callable[..., Any]] = {}
WARP: dict[str, Callable[..., Any]] = {}
IMMEDIATES: dict[str, tuple[int, ...]] = {
    "count": (64, 24, 256),
    "ia": (1, -1),
    "ib": (1, -1),
    "ta": (0, 1),
    "tb": (0, 1),
    "mode": (0, 1),
    "split": (0, 16),
    "scale": (0, 15),
    "ord": (0, 3),
}

# ---------------------------------------- mbarriers and wgmma: test_hopper.py

ORDER = ("", ".sem.scope")
ARRIVALS = {
    f"mbarrier.{head}{kind}{order}{{.space}}.b64 d:b64, [addr:u64]{operand}"
    for head, order, (kind, operand) in product(
        ("arrive", "arrive_drop"),
        ORDER,
        (("", ""), ("", ", count:u32"), (".noComplete", ", count:u32"), (".expect_tx", ", tx:u32")),
    )
}
TRANSACTIONS = {
    f"mbarrier.{head}{order}{{.space}}.b64 [addr:u64], tx:u32"
    for head, order in product(("expect_tx", "complete_tx"), ORDER)
}
TESTS = {
    f"mbarrier.test_wait{kind}{order}{{.space}}.b64 p:pred, [addr:u64], a:{type}"
    for (kind, type), order in product((("", "b64"), (".parity", "u32")), ORDER)
}
WAITS = {
    f"mbarrier.try_wait{kind}{order}{{.space}}.b64 p:pred, [addr:u64], a:{type}{{, hint:u32}}"
    for (kind, type), order in product((("", "b64"), (".parity", "u32")), ORDER)
}
OBJECTS = {
    "mbarrier.init{.space}.b64 [addr:u64], count:u32",
    "mbarrier.inval{.space}.b64 [addr:u64]",
    "cp.async.mbarrier.arrive{.noinc}{.space}.b64 [addr:u64]",
}
RANKS = {"getctarank{.space}.type d:u32, a"}
INTEGERS = ("s8.s8", "u8.u8", "s8.u8", "u8.s8")
FLAGS = ("", ", ia:imm, ib:imm, tb:imm", ", ia:imm, ib:imm", ", ia:imm, ib:imm, ta:imm, tb:imm")
WGMMA = {
    f"wgmma.mma_async.sync.aligned.shape{types} d:{d}*nd, {a}, b:u64, s:pred{flags}"
    for types, d, registers_flags, shared_flags in (
        (".f32.f16.f16", "f32", FLAGS[1], FLAGS[3]),
        (".f16.f16.f16", "b32", FLAGS[1], FLAGS[3]),
        (".f32.bf16.bf16", "f32", FLAGS[1], FLAGS[3]),
        (".f32.tf32.tf32", "f32", FLAGS[2], FLAGS[2]),
        (".f32.atype.btype", "f32", FLAGS[2], FLAGS[2]),
        (".f16.atype.btype", "b32", FLAGS[2], FLAGS[2]),
        *(("{.satfinite}.s32." + types, "s32", "", "") for types in INTEGERS),
    )
    for a, flags in (("a:b32*4", registers_flags), ("a:u64", shared_flags))
}
ZEROS = {"st.bulk{.weak}{.space} [addr:u64], size:u64, 0"}  # tests/interpreter/machine/test_zeros.py
ELSEWHERE: frozenset[str] = frozenset(
    ARRIVALS | TRANSACTIONS | TESTS | WAITS | OBJECTS | WGMMA | RANKS | ZEROS
)

# ---------------------------------------- bulk copies

COUNTED = "mbarrier::complete_tx::bytes"


def reduction(names: dict[str, Any]) -> Any:
    return REDUCTIONS.get(names.get("op", ""))


def operation(names: dict[str, Any]) -> Any:
    return names.get("op", "")


def added(_: dict[str, Any]) -> Any:
    return REDUCTIONS["add"]


def by_rows(rows: bool) -> Any:
    return lambda _: {"rows": rows}


def map_address(names: dict[str, Any]) -> Any:
    return names["map"][0]


def coordinates(names: dict[str, Any]) -> Any:
    return names["map"][1]


def load_options(*, rows: bool) -> Any:
    return lambda names: {"rows": rows, "pair": names.get("group") == "cta_group::2"}


MODES = (("dim", "{.tile}"), ("2d", ".tile::gather4"))


def bulk_calls() -> dict[str, list[tuple[Any, ...]]]:
    calls: dict[str, list[tuple[Any, ...]]] = {}
    four = "dst", "src", "size", "mbar"
    of_load = load_options(rows=False), load_options(rows=True)
    for multicast, hint in product((False, True), repeat=2):
        tail = ".multicast::cluster" * multicast + ".L2::cache_hint" * hint
        operands = ", ctas:u16" * multicast + ", policy:u64" * hint
        ctas = "ctas" if multicast else None
        calls |= {
            f"cp.async.bulk.to.global.{COUNTED}{tail} [dst:u32], [src:u64], size:u32, [mbar:u32]{operands}": [
                ("bulk_load", *four, ctas)
            ]
        }
        grouped = ".multicast::cluster" * multicast + "{.group}" + ".L2::cache_hint" * hint
        for (dim, mode), (count, rows) in zip(MODES, (("dim", False), ("5", True)), strict=True):
            calls[
                f"cp.async.bulk.tensor.{dim}.to.global{mode}.{COUNTED}{grouped} "
                f"[dst:u32], [map:u64*{count}], [mbar:u32]{operands}"
            ] = [("tensor_load", "dst", map_address, coordinates, "mbar", ctas, of_load[rows])]
    calls[
        f"cp.async.bulk.shared::cluster.shared::cta.{COUNTED} [dst:u32], [src:u32], size:u32, [mbar:u32]"
    ] = [("bulk_send", *four, None, b64)]
    calls[
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{COUNTED}.op.type "
        "[dst:u32], [src:u32], size:u32, [mbar:u32]"
    ] = [("bulk_send", *four, reduction, "type")]
    for hint in (False, True):
        tail, operand = ".L2::cache_hint" * hint, ", policy:u64" * hint
        to_global = f"[dst:u64], [src:u32], size:u32{operand}"
        of_tensor = f"[map:u64*dim], [src:u32]{operand}"
        of_rows = of_tensor.replace("dim", "5")
        group = "global.shared::cta"
        store = "bulk_store", *four[:3]
        tensor = "tensor_store", map_address, coordinates, "src"
        calls |= {
            f"cp.async.bulk.{group}.bulk_group{tail} {to_global}": [(*store, None, b64)],
            f"cp.reduce.async.bulk.{group}.bulk_group{tail}.op.type {to_global}": [
                (*store, reduction, "type")
            ],
            f"cp.reduce.async.bulk.{group}.bulk_group{tail}.add.noftz.type {to_global}": [
                (*store, added, "type")
            ],
            f"cp.async.bulk.prefetch.L2.global{tail} [src:u64], size:u32{operand}": [],
            f"cp.async.bulk.tensor.dim.{group}{{.tile}}.bulk_group{tail} {of_tensor}": [
                (*tensor, operation, by_rows(False))
            ],
            f"cp.reduce.async.bulk.tensor.dim.{group}.op{{.tile}}.bulk_group{tail} {of_tensor}": [
                (*tensor, operation, by_rows(False))
            ],
            f"cp.async.bulk.tensor.2d.{group}.tile::scatter4.bulk_group{tail} {of_rows}": [
                (*tensor, operation, by_rows(True))
            ],
            f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4{tail} [map:u64*5]{operand}": [],
            f"cp.async.bulk.prefetch.tensor.dim.L2.global{{.tile}}{tail} [map:u64*dim]{operand}": [],
        }
    return calls


EVERY_LANE = ("warp_sync", 0xFFFFFFFF)


def sent(names: dict[str, Any]) -> Any:
    return names["a"] if names.get("vec") else (names["a"],)


def space_of(names: dict[str, Any]) -> Any:
    return names["space"] or "generic"


def number(value: int) -> Any:
    return lambda _: value


def tensormap_calls() -> dict[str, list[tuple[Any, ...]]]:
    head, replace = "tensormap.replace.tile.", ("tensormap_replace", space_of, "addr")
    return {
        f"{head}global_address{{.space}}.b1024.b64 [addr:u64], a:b64": [
            (*replace, "=global_address", number(0), "a")
        ],
        f"{head}rank{{.space}}.b1024.b32 [addr:u64], a:b32": [(*replace, "=rank", number(0), "a")],
        f"{head}field{{.space}}.b1024.b32 [addr:u64], ord:imm, a:b32": [(*replace, "field", "ord", "a")],
        f"{head}global_stride{{.space}}.b1024.b64 [addr:u64], ord:imm, a:b64": [
            (*replace, "=global_stride", "ord", "a")
        ],
        f"{head}field{{.space}}.b1024.b32 [addr:u64], mode:imm": [(*replace, "field", number(0), "mode")],
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned "
        "[dst:u64], [src:u32], 128": [EVERY_LANE, ("tensormap_copy", "dst", "src"), ("fence", "scope")],
    }


CALLS: dict[str, list[tuple[Any, ...]]] = {
    **bulk_calls(),
    "prefetch{.space}.tensormap [addr:u64]": [],
    "cp.async.bulk.commit_group": [("bulk_commit",)],
    "cp.async.bulk.wait_group{.read} n:imm": [("bulk_wait", "n", "read")],
    "mapa{.space}.type d, a, b:u32": [("map_shared", "a", "b")],
    "barrier.cluster.arrive{.sem}{.aligned}": [("cluster_arrive",)],
    "barrier.cluster.wait{.sem}{.aligned}": [("cluster_wait",)],
    "fence.proxy.kind": [("fence", lambda names: f"proxy.{names['kind']}")],
    "fence.proxy.async.space": [("fence", lambda names: f"proxy.async.{names['space']}")],
    "fence.proxy.tensormap::generic.release.scope": [("fence", "scope")],
    "fence.proxy.tensormap::generic.acquire.scope [addr:u64], 128": [("fence", "scope")],
    "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster": [("fence", "=proxy.async")],
    "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster": [("fence", "=proxy.async")],
    "fence.mbarrier_init.release.cluster": [("fence", "=mbarrier_init")],
    "griddepcontrol.wait": [("fence", "=grids")],
    "griddepcontrol.launch_dependents": [],
    **{
        f"clusterlaunchcontrol.try_cancel.async{{.space}}.{COUNTED}{cast}.b128 [addr:u64], [mbar:u64]": [
            (
                "cancel_launch",
                lambda names: "shared" if names["space"] else "generic",
                "addr",
                "mbar",
                lambda _, all=bool(cast): {"everywhere": all},
            )
        ]
        for cast in ("", ".multicast::cluster::all")
    },
    **tensormap_calls(),
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.op.type "
    "[dst:u32], a, [mbar:u32]": [("send_values", "dst", sent, "mbar", reduction, "type")],
    "st.async{.weak}.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [dst:u32], a*vec, [mbar:u32]": [
        ("send_values", "dst", sent, "mbar", None, "type")
    ],
    "wgmma.fence.sync.aligned": [EVERY_LANE],
    "setmaxnreg.action.sync.aligned.u32 count:imm": [
        EVERY_LANE,
        ("set_registers", "count", lambda names: {"more": names["action"] == "inc"}),
    ],
    "wgmma.commit_group.sync.aligned": [EVERY_LANE],
    "wgmma.wait_group.sync.aligned n:imm": [EVERY_LANE],
}
