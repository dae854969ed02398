"""Copies of boxes of tensors that tensor maps describe (PTX ISA, "Data Movement: Tensor copy").

A map and coordinates select a box (`ptxgen.tensormap`), or with .tile::gather4 and .tile::scatter4 a
column and four rows of a matrix. The copies complete as other bulk copies do (`ptxgen.isa.bulk`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.async_copy import COPY
from ptxgen.isa.bulk import COUNTED, FAR, HINT, IN_GROUP, MOVEMENT, NEAR, NEARER, REDUCTIONS, TARGETS
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.spec import TENSOR_FAMILIES, Effect, gate

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

_TENSOR: Final = f"{COPY}: Tensor copy"
_DIMS: Final = ("1d", "2d", "3d", "4d", "5d")
_SM90: Final[dict[str, Any]] = {"ptx": (8, 0), "sm": 90}
_ASYNC: Final[dict[str, Any]] = {"ignores": ("policy", "dim", "tile", "to"), "effect": Effect.ASYNC, **_SM90}
_SM100: Final = gate(ptx=(8, 6), sm=100)
_PAIRED: Final = gate(ptx=(8, 6), sm=100, only=TENSOR_FAMILIES)  # targets with pairs of CTAs
_GROUPS: Final = {"cta_group::1": _PAIRED, "cta_group::2": _PAIRED}
# By the words of the mode: the destinations of loads to one CTA and to several.
_TILES: Final = each("mode dim coordinates rows", ("{.tile}", _DIMS, "dim", False))
_ROWS: Final = each("mode dim coordinates rows", (".tile::gather4", "2d", 5, True))
_ROW_TARGETS: Final = each(
    "cast multicast mask where to",
    ("", "", "", "", {"shared::cluster": _PAIRED, "shared::cta": _SM100}),
    (
        "_multicast",
        ".multicast::cluster",
        ", ctas:u16",
        " in each CTA of the cluster in the mask ctas",
        {"shared::cluster": _PAIRED},
    ),
)
_FOUR: Final = "the boxes of one row at the column and at each of the four rows"


@inst(
    f"cp.async.bulk.tensor.<dim>.to.global<mode>.{COUNTED}<multicast>{{.group}}<hint> "
    "[dst:u32], [map:u64*<coordinates>], [mbar:u32]<mask><policy>",
    times(each("kind what", ("load", "the box at the map's coordinates")), _TILES, TARGETS)
    + times(each("kind what", ("gather4", f"{_FOUR}, one after another,")), _ROWS, _ROW_TARGETS),
    HINT,
    name="cp_async_bulk_tensor_<kind><cast><hinted>",
    group=_GROUPS,
    section=f"{_TENSOR}: cp.async.bulk.tensor",
    **_ASYNC,
)
def cp_async_bulk_tensor_load(
    machine: Machine,
    dst: Lanes,
    map: tuple[Lanes, Any],
    mbar: Lanes,
    ctas: Lanes | None = None,
    *,
    group: str | None,
    rows: bool,
) -> tuple[()]:
    """Start copying <what> to dst<where>; the mbarrier at mbar in the
    same CTA, or with .cta_group::2 in either CTA of its pair, counts the bytes of the whole box.
    """
    address, coordinates = map
    machine.tensor_load(dst, address, coordinates, mbar, ctas, rows=rows, pair=group == "cta_group::2")
    return ()


_BOX: Final = "global.shared::cta{.tile}.bulk_group"
_REDUCED_BOX: Final = "global.shared::cta.op{.tile}.bulk_group"
_STORED_PART: Final = (
    "Start copying from src the part of the box at the map's coordinates that is inside the tensor"
)


@inst(
    "<form>.tensor.<dim>.<way><hint> [map:u64*<coordinates>]<source><policy>",
    HINT,
    times(
        each("dim coordinates rows", (_DIMS, "dim", False)),
        each(
            "name form way op source does",
            (
                "cp_async_bulk_tensor_store<hinted>",
                "cp.async.bulk",
                _BOX,
                None,
                ", [src:u32]",
                f"{_STORED_PART}{IN_GROUP}",
            ),
            (
                "cp_reduce_async_bulk_tensor<hinted>",
                "cp.reduce.async.bulk",
                _REDUCED_BOX,
                tuple(REDUCTIONS),
                ", [src:u32]",
                f"Start combining the box at the map's coordinates with the one at src{IN_GROUP}",
            ),
            (
                "cp_async_bulk_prefetch_tensor<hinted>",
                "cp.async.bulk.prefetch",
                "L2.global{.tile}",
                None,
                "",
                f"Have the box at the map's coordinates {NEARER}",
            ),
        ),
    )
    + times(
        each("dim coordinates rows ptx sm only", ("2d", 5, True, (8, 6), 100, tuple(_PAIRED.only))),
        each(
            "name form way source does",
            (
                "cp_async_bulk_tensor_scatter4<hinted>",
                "cp.async.bulk",
                "global.shared::cta.tile::scatter4.bulk_group",
                ", [src:u32]",
                f"Start copying from src, where they lie one after another, {_FOUR}{IN_GROUP}",
            ),
            (
                "cp_async_bulk_prefetch_tensor_gather4<hinted>",
                "cp.async.bulk.prefetch",
                "L2.global.tile::gather4",
                "",
                f"Have {_FOUR} {NEARER}",
            ),
        ),
    ),
    section=f"{_TENSOR}: <form>.tensor",
    **_ASYNC,
)
def cp_async_bulk_tensor_store(
    machine: Machine, map: tuple[Lanes, Any], src: Lanes | None = None, *, op: str = "", rows: bool
) -> tuple[()]:
    """<does>."""
    if src is not None:  # without src the instruction is a prefetch
        machine.tensor_store(*map, src, op, rows=rows)
    return ()


# ---------------------------------------- boxes of convolutions

_UNMODELLED: Final[dict[str, Any]] = {
    **_SM90,
    "effect": Effect.ASYNC,
    "unmodelled": "tensor maps for im2col are not modelled",
}
_VOLUMES: Final = _DIMS[2:]
_COUNTS: Final[dict[str, Any]] = {
    "counts": {"no": lambda m: int(m["dim"][0]) - 2 if m["mode"] == "im2col" else 2}
}
_ONE_ROW: Final = {"im2col::w": _PAIRED, "im2col::w::128": _PAIRED}


@inst(
    f"cp.async.bulk.tensor.dim.to.global.mode.{COUNTED}<multicast>{{.group}}<hint> "
    "[dst:u32], [map:u64*dim], [mbar:u32], offsets:u16*no<mask><policy>",
    times(
        each("cast multicast mask", ("", "", "")),
        each(
            "mode to",
            (("im2col",), NEAR),
            (("im2col::w",), {"shared::cluster": _PAIRED, "shared::cta": _SM100}),
            (("im2col::w::128",), {"shared::cluster": _PAIRED, "shared::cta": _PAIRED}),
        ),
    )
    + times(
        each("cast multicast mask", ("_multicast", ".multicast::cluster", ", ctas:u16")),
        each("mode to", ({"im2col": None, **_ONE_ROW}, FAR)),
    ),
    HINT,
    name="cp_async_bulk_tensor_im2col<cast><hinted>",
    dim=_VOLUMES,
    group=_GROUPS,
    section=f"{_TENSOR}: cp.async.bulk.tensor",
    **_COUNTS,
    **_UNMODELLED,
)
def cp_async_bulk_tensor_im2col() -> None:
    """Start copying the pixels that the map and its coordinates, moved by the offsets, select for one
    position of a filter to dst; the mbarrier at mbar counts the bytes.
    """


@inst(
    "<form>.tensor.dim.global.shared::cta<op>.im2col_no_offs.bulk_group<hint> "
    "[map:u64*dim], [src:u32]<policy>",
    HINT,
    each(
        "name form op operation",
        ("cp_async_bulk_tensor_im2col_store<hinted>", "cp.async.bulk", "", None),
        (
            "cp_reduce_async_bulk_tensor_im2col<hinted>",
            "cp.reduce.async.bulk",
            ".operation",
            tuple(REDUCTIONS),
        ),
    ),
    dim=_VOLUMES,
    section=f"{_TENSOR}: <form>.tensor",
    **_UNMODELLED,
)
def cp_async_bulk_tensor_im2col_store() -> None:
    """Start copying or combining from src to the pixels of a tensor that the map and its coordinates select,
    in this thread's bulk group.
    """


@inst(
    "cp.async.bulk.prefetch.tensor.dim.L2.global.mode<hint> [map:u64*dim], offsets:u16*no<policy>",
    HINT,
    name="cp_async_bulk_prefetch_tensor_im2col<hinted>",
    mode={"im2col": None, **_ONE_ROW},
    dim=_VOLUMES,
    section=f"{_TENSOR}: cp.async.bulk.prefetch.tensor",
    **_COUNTS,
    **_UNMODELLED,
)
def cp_async_bulk_prefetch_tensor_im2col() -> None:
    """Have the pixels that the map and its coordinates, moved by the offsets, select brought to the L2 cache:
    a hint.
    """


# ---------------------------------------- tensor maps


@inst(
    "prefetch{.space}.tensormap [addr:u64]",
    name="prefetch_tensormap",
    space=("param", "const"),
    effect=Effect.ASYNC,
    section=f"{MOVEMENT}: prefetch",
    **_SM90,
)
def prefetch_tensormap(machine: Machine, addr: Lanes, *, space: str | None) -> tuple[()]:
    """Bring the tensor map at addr into a nearer cache: a hint."""
    del machine, addr, space
    return ()
