"""Copies of boxes of tensors (`k.tma`): tensor maps, tiles, rings, loads, stores and reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ptxgen import ir
from ptxgen.arguments import is_one_of
from ptxgen.dsl.hopper.async_stores import AsyncStores, StoringThreads
from ptxgen.dsl.hopper.cluster import Cluster
from ptxgen.dsl.hopper.layouts import SWIZZLE_ROWS, Layout
from ptxgen.dsl.hopper.products import Products
from ptxgen.dsl.hopper.ring import Ring
from ptxgen.dsl.hopper.role import Role
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.hopper.stage import Stage, barriers_of_stage
from ptxgen.dsl.hopper.tensor_maps import (
    Corner,
    Reduction,
    TensorParameter,
    boxes_of,
    copy_slabs,
    require_reduction,
)
from ptxgen.dsl.hopper.tiles import ANYBODY, BoxTile
from ptxgen.dsl.tiles import SharedTile
from ptxgen.dsl.values import Scalar, Value, is_count
from ptxgen.errors import ConfigError, TypeMismatchError, UnsupportedTargetError, shown
from ptxgen.tensormap import ALIGN, NBYTES, Boxes, TensorMapType
from ptxgen.types import ScalarType, s32, u64

_FIRST_SM: Final = 90
_BARRIER_ALIGN: Final = 8  # bytes


class Tma:
    """Copies by the tensor memory accelerator, from sm_90 on.

    `shared` reserves shared memory, `declare` adds a parameter to the kernel.
    """

    def __init__(
        self,
        k: Roles,
        cluster: Cluster,
        shared: Callable[..., SharedTile],
        declare: Callable[[ir.Param], None],
    ) -> None:
        self._k = k
        self._cluster = cluster
        self._shared = shared
        self._declare = declare
        self._parameters: dict[str, TensorParameter] = {}
        self._rings = 0

    # ------------------------------------------------------------------------------ declarations

    def tensor_map(self, name: str, dtype: ScalarType, rank: int = 2) -> TensorParameter:
        """Declare a parameter that is a tensor map of an array of `dtype` with `rank` dimensions."""
        self._require("tma.tensor_map")
        type = TensorMapType(dtype, rank)
        self._declare(ir.Param(name, "b8", NBYTES, ALIGN))
        parameter = self._parameters[name] = TensorParameter(self._k, name, type)
        return parameter

    def tile(
        self,
        name: str,
        shape: object,
        dtype: ScalarType,
        *,
        swizzle: str | None = None,
        over: BoxTile | None = None,
    ) -> BoxTile:
        """A tile in shared memory that a copy fills or empties: `shape` has up to five dimensions, the
        columns last, and all others together are its rows.

        `swizzle` is "none", "32B", "64B" or "128B", by default the widest that divides a row. Rows that are
        wider than the swizzle are cut into slabs. `over` is a tile, such as `ring.tile("a")`, in whose memory
        this one lies, for use after the last use of that tile. Raises `ConfigError` for a row that is no
        multiple of the swizzle, or of 16 bytes, and for an `over` that is smaller.
        """
        self._require("tma.tile")
        layout = Layout.of(f"tile {name!r}", shape, dtype, swizzle)
        if over is not None:
            return over.over(name, layout)
        region = self._region(name, layout, 1)
        return BoxTile(self._k, name, layout, region.pointer(), ANYBODY)

    def ring(
        self,
        stages: int,
        producer: Role,
        consumer: Role,
        /,
        *,
        multicast: bool = False,
        overlapped: bool = False,
        written: bool = False,
        reworked: bool = False,
        gathered: bool = False,
        dealt: bool = False,
        parts: int = 1,
        stored: Sequence[str] = (),
        at_once: bool = False,
        released_by: Products | None = None,
        **tiles: tuple[object, ...] | Layout,
    ) -> Ring:
        """A ring of `stages` stages, each with the given tiles: `ring(3, producer, consumer,
        a=((128, 64), f16), b=((64, 256), f16, "64B"))` with shape, dtype and perhaps swizzle.

        It is made before the first role begins. With `multicast` the CTAs of the cluster fill stages of each
        other, at the same steps. With `overlapped` the consumer's products of one step may be under way in
        the next one, which needs two stages or more; `ring.finish()` ends them. With `written` the threads of
        the producer store to stages, in `with ring.write() as stage:`, and no copies fill them. With
        `reworked` all threads of the producer work on each stage, in the order of its fills, before the
        consumer has it: `with ring.rework() as stage:`; or only on stages that are filled with a true
        predicate `reworked=`. With `gathered` they copy to it by `k.copy_async`, each row from any address:
        `with ring.gather() as stage:`. With `stored=("a",)` copies fill all tiles but those named, to which
        all threads of the producer store, once after each fill: `with ring.store() as stage:`, or in
        `rework`; consumers wait for both at one barrier. With `at_once` each `rework`, `store` or `pass_on`
        follows its fill before the next fill, which saves two registers. With `dealt` each warpgroup of the
        consumer takes stages in any order, `stage = ring.take(index, parity)`, and one warpgroup releases
        each stage; there the slabs of a tile may arrive in several `parts`, so that products begin when the
        first is there: `stage.wait(part)`. With `released_by=memory`, a `k.tensor_memory(...)`, one thread
        of the consumer starts products that read a stage, and their commit releases it; in a pair of CTAs
        each CTA fills its stages, and that thread is in the even one. A role that moves whole stages for
        itself may be producer and consumer.
        """
        self._require("tma.ring")
        for role in (producer, consumer):
            if getattr(role, "k", None) is not self._k:
                raise ConfigError(
                    f"ring: the producer and the consumer must be roles of this kernel, got {shown(role)}"
                )
        if not is_count(stages) or not tiles:
            raise ConfigError(
                "ring: it takes a positive number of stages, two roles, and tiles by name, such as "
                f"a=((128, 64), f16); got {shown(stages)}, {producer!r}, {consumer!r} and {shown(tiles)}"
            )
        if multicast and self._cluster.size == 1:
            raise ConfigError("ring: multicast=True is for clusters; build the kernel with cluster=2, say")
        for name in tiles:
            if name.startswith("_") or hasattr(Stage, name):
                raise ConfigError(f"ring: a tile cannot be called {name!r}, a word of stages; rename it")
        if multicast and written:
            raise ConfigError("ring: multicast=True is for copies, and threads write their own CTA's stages")
        if gathered and (multicast or written):
            raise ConfigError(
                "ring: gathered=True is for copies by the threads of a CTA; leave out multicast and written"
            )
        _check_stored(stored, list(tiles), excluded=multicast or written or gathered or dealt)
        _check_at_once(at_once, has_second_step=(reworked or bool(stored)) and not gathered)
        others = multicast, overlapped, written, reworked
        _check_dealt(consumer, dealt=dealt, otherwise=any(others))
        _check_released_by(
            released_by,
            pair_excludes=written or reworked or gathered or bool(stored),
            excluded=multicast or overlapped or dealt,
        )
        if overlapped and stages == 1:
            raise ConfigError("ring: an overlapped ring needs two stages or more, got 1")
        layouts = {
            name: tile if isinstance(tile, Layout) else Layout.of(f"tile {name!r}", *_three(name, tile))
            for name, tile in tiles.items()
        }
        _check_parts(parts, [layout.slabs for layout in layouts.values()], allowed=dealt and not gathered)
        self._rings += 1
        name = f"ring_{self._rings}"
        regions = {n: self._region(f"{name}_{n}", layout, stages) for n, layout in layouts.items()}
        count = (barriers_of_stage(parts) + reworked) * stages
        barriers = self._shared(name, (1, count), u64, align=_BARRIER_ALIGN)
        ctas = self._cluster.size if multicast else 1
        ways = overlapped, written, reworked, gathered, dealt
        ring = Ring(
            self._k,
            name,
            producer,
            consumer,
            layouts,
            regions,
            barriers,
            ctas,
            *ways,
            parts,
            stored,
            at_once,
            released_by,
        )
        self._k.add_role_user(ring)
        return ring

    # ------------------------------------------------------------------------------ copies

    def load(self, tile: BoxTile, place: Corner | Sequence[Corner], *, multicast: bool = False) -> None:
        """Start loading a tile of a stage from the box of a tensor at `place`: `k.tma.load(stage.a, A[row,
        column])`.

        What lies outside of the tensor is zero. The stage's barrier waits for the bytes. The call belongs
        into `with ring.fill() as stage:`.

        If `place` is a list of corners in one tensor, each fills an equal share of the tile's first
        dimension, in order: for a tile whose rows are in several pages. A share has a multiple of 8 rows.

        With `multicast` all CTAs of the cluster pass the same `place`; each loads its share of the tile's
        first dimension, which all of them receive. The ring is made with `multicast=True`.
        """
        corners = [place] if isinstance(place, Corner) or not isinstance(place, Sequence) else list(place)
        checked: Sequence[object] = corners or [None]
        for one in checked:
            boxes_of("tma.load", tile, one)
        stage = tile.owner
        if not isinstance(stage, Stage) or stage.ring.tiles.get(tile.name) is not tile.layout:
            raise TypeMismatchError(
                "tma.load: the tile must be one of a stage, as in k.tma.load(stage.a, A[0, 0])"
            )
        stage.note_load(tile.name)
        if multicast:
            if not isinstance(place, Corner):
                raise ConfigError("tma.load: a multicast takes one place, got a list of them")
            self._load_share(tile, place, stage)
            return
        part, of = self._part(tile, corners), corners[0].of
        group: Any = {"group": "cta_group::2"} if stage.ring.of_pair else {}
        of.fix(replace(part.boxes(of.type.rank), loads=True))
        dim: Any = f"{of.type.rank}d"
        for nth, one in enumerate(corners):
            for number in range(tile.layout.slabs):
                at = one.pointer(number * tile.layout.slab_columns)
                to = tile.slab(number).plus_bytes(nth * part.rows * part.row_bytes)
                arrives = stage.arrival(number * stage.ring.parts // tile.layout.slabs)
                self._k.cp_async_bulk_tensor_load(to, at, arrives, dim=dim, **group)

    def _part(self, tile: BoxTile, corners: list[Corner]) -> Layout:
        """The layout of the share of a tile that each of these corners fills."""
        layout, count = tile.layout, len(corners)
        if count == 1:
            return layout
        share, left = divmod(layout.shape[0], count)
        rows = share * layout.rows // layout.shape[0]
        if any(one.of is not corners[0].of for one in corners):
            raise ConfigError("tma.load: the places of a tile must be in one tensor")
        if left or rows % SWIZZLE_ROWS or len(layout.shape) == 1:
            raise ConfigError(
                f"tma.load: each of {count} places must give a multiple of {SWIZZLE_ROWS} rows, got tile "
                f"{tile.name!r} with shape {list(layout.shape)}"
            )
        return replace(layout, shape=(share, *layout.shape[1:]))

    def _load_share(self, tile: BoxTile, corner: Corner, stage: Stage) -> None:
        """Load this CTA's share of a tile into the shared memory of all CTAs of the cluster."""
        k, layout, ctas = self._k, tile.layout, self._cluster.size
        share, left = divmod(layout.shape[0], ctas)
        rows = share * layout.rows // layout.shape[0]
        if stage.ring.ctas == 1 or left or rows % SWIZZLE_ROWS or len(layout.shape) == 1:
            raise ConfigError(
                f"tma.load: a multicast needs a ring made with multicast=True, and a share of a multiple of "
                f"{SWIZZLE_ROWS} rows for each of the {ctas} CTAs, got tile {tile.name!r} with shape "
                f"{list(layout.shape)} of {stage.ring!r}"
            )
        part = replace(layout, shape=(share, *layout.shape[1:]))
        rank, of = self._cluster.rank(), corner.of
        of.fix(replace(part.boxes(of.type.rank), loads=True))
        start = k.mul(rank, rows * layout.row_bytes, mode="lo")
        axis = of.type.rank - len(layout.shape)
        coordinates = list(corner.coordinates)
        coordinates[axis] = _as_s32(k.mul(rank, share, mode="lo")) + _as_s32(coordinates[axis])
        dim: Any = f"{of.type.rank}d"
        for number in range(layout.slabs):
            at, to = Corner(of, tuple(coordinates)).pointer(number * layout.slab_columns), tile.slab(number)
            k.cp_async_bulk_tensor_load_multicast(
                to.moved(to.value + start), at, stage.full, (1 << ctas) - 1, dim=dim
            )

    def store(self, tile: BoxTile, place: Corner, *, visible: bool | Value = False) -> None:
        """Store a tile to the box of a tensor at `place`, and wait until the tile has been read, so that it
        may be written again; if it is to be `visible`, until the threads may read it in the tensor: True,
        False, or a predicate that is the same in all of them. What lies outside of the tensor is not written.

        All threads of the role, or outside of roles of the CTA, must come here: what they wrote to the
        tile is stored.
        """
        boxes = boxes_of("tma.store", tile, place)
        self._send(
            "tma.store", replace(boxes, stores=True), tile, place, visible, self._k.cp_async_bulk_tensor_store
        )

    def reduce(self, tile: BoxTile, place: Corner, op: Reduction, *, visible: bool | Value = False) -> None:
        """Combine the elements of a tensor, in the box at `place`, with those of a tile: each becomes `op` of
        its old value and the tile's element. The rest is as in `store`.

        `op` is "add" (integers wrap around), "min" or "max"; "inc" or "dec" of u32, which count from 0 up to
        the tile's element and begin again, or down from it; "and", "or" or "xor" of integers. Elements are
        combined in one step each, so several CTAs may combine into one box; sums of floats depend on the
        order of the CTAs. Raises `TypeMismatchError` for elements that an operation does not take.
        """
        boxes = boxes_of("tma.reduce", tile, place)
        require_reduction("tma.reduce", op, place.of.name, place.of.type.dtype)
        copy = partial(self._k.cp_reduce_async_bulk_tensor, op=op)
        self._send("tma.reduce", replace(boxes, loads=True, stores=True), tile, place, visible, copy)

    def _send(
        self,
        caller: str,
        boxes: Boxes,
        tile: BoxTile,
        corner: Corner,
        visible: bool | Value,
        copy: Callable[..., None],
    ) -> None:
        """Start `copy`, from each slab of a tile to its box of the tensor, in one thread, and wait for it."""
        k = self._k
        if k.present_role is not None:
            k.require_whole_role(caller, k.present_role)
        corner.of.fix(boxes)
        k.fence_proxy_async(space="shared::cta")
        self._meet()
        role = k.present_role
        with k.when(k.thread_index() == 0 if role is None else role.leads):
            copy_slabs(copy, tile, corner)
            k.cp_async_bulk_commit_group()
            k.cp_async_bulk_wait_group(0, read=visible is not True)
            if isinstance(visible, Value):
                with k.when(visible):
                    k.cp_async_bulk_wait_group(0)
        self._meet()
        k.pending_reads.waited(("all", role), 0, read=visible is not True)

    def async_stores(self, threads: StoringThreads = "all") -> AsyncStores:
        """Copies from tiles to global memory that are started now and waited for later: `stores.store(tile,
        C[row, column])`, `stores.reduce(tile, C[row, column], "add")`, and before the tile is written again
        `stores.wait_read()`.

        `threads` says which threads come to each call: "all" of the role, or outside of roles of the CTA;
        "warpgroup", those of each warpgroup of them, which copies by itself; or "thread", one thread inside
        of a `when`. It is called where all threads of the role come, before the first loop. Raises
        `ConfigError` for other words, for a role that does not consist of warpgroups, and if no named
        barriers are left.
        """
        self._require("tma.async_stores")
        return AsyncStores(self._k, threads)

    def boxes(self) -> Mapping[str, Boxes]:
        """The box and swizzle that the kernel fixes for each tensor map, by name. Raises `ConfigError` for a
        parameter that no copy uses.
        """
        boxes = {}
        for name, parameter in self._parameters.items():
            if parameter.boxes is None:
                raise ConfigError(
                    f"kernel {self._k.name!r}: no copy uses the tensor map {name}, so its box is not "
                    "known; load or store a tile, or remove the parameter"
                )
            boxes[name] = parameter.boxes
        return boxes

    # ------------------------------------------------------------------------------ inside

    def _meet(self) -> None:
        """Wait at a barrier for all threads of the present role, or of the CTA outside of roles."""
        role = self._k.present_role
        if role is None:
            self._k.barrier()
        else:
            role.barrier.sync()

    def _region(self, name: str, layout: Layout, count: int) -> SharedTile:
        rows = -(-count * layout.tile_bytes // layout.row_bytes)
        return self._shared(name, (rows, layout.slab_columns), layout.dtype, align=layout.align)

    def _require(self, caller: str) -> None:
        target = self._k.target
        if target.sm < _FIRST_SM:
            raise UnsupportedTargetError(
                f"{caller} needs sm_{_FIRST_SM}, but kernel {self._k.name!r} targets {target.name}; build it "
                "with target='sm_90a'"
            )


def _check_dealt(consumer: Role, *, dealt: bool, otherwise: bool) -> None:
    """Raise `ConfigError` for a dealt ring with options that it excludes (`otherwise`), or whose consumer is
    not made of whole warpgroups.
    """
    if dealt and (otherwise or not consumer.warpgroups):
        raise ConfigError(
            "ring: dealt=True is for copies and a consumer of whole warpgroups; leave out multicast, "
            "overlapped, written and reworked"
        )


def _check_released_by(released_by: object, *, excluded: bool, pair_excludes: bool) -> None:
    """Raise `TypeMismatchError` or `ConfigError` unless a ring may be `released_by` this, or is not released
    by any tensor memory.
    """
    if released_by is None:
        return
    if not hasattr(released_by, "cta_group"):
        raise TypeMismatchError(
            f"ring: released_by must be the tensor memory of this kernel, k.tensor_memory(...), got "
            f"{shown(released_by)}"
        )
    if excluded:
        raise ConfigError(
            "ring: released_by=… is for products of one thread, which take stages in order; leave out "
            "multicast, overlapped and dealt"
        )
    if released_by.cta_group > 1 and pair_excludes:
        raise ConfigError(
            "ring: of a pair of CTAs, released_by=… is for stages that copies of tensors fill; leave out "
            "written, reworked, gathered and stored"
        )


def _check_at_once(at_once: bool, *, has_second_step: bool) -> None:
    """Raise `ConfigError` if a ring is made `at_once`, but its producer has no second step after a fill."""
    if at_once and not has_second_step:
        raise ConfigError(
            "ring: at_once=True is for stages with a second step of the producer after fill; make the ring "
            "with reworked=True or stored=…, and without gathered"
        )


def _check_stored(stored: object, tiles: list[str], *, excluded: bool) -> None:
    """Raise `ConfigError` unless `stored` names some of the tiles, but not all of them, in a ring without
    options that exclude it.
    """
    if not isinstance(stored, tuple | list) or any(not is_one_of(name, tiles) for name in stored):
        raise ConfigError(
            f"ring: stored must be a tuple of names of its tiles, which are {', '.join(tiles)}, got "
            f"{shown(stored)}"
        )
    if stored and excluded:
        raise ConfigError(
            "ring: stored=… is for stages that one CTA fills by copies of tensors, and that consumers take "
            "in order; leave out multicast, written, gathered and dealt"
        )
    if stored and len(set(stored)) == len(tiles):
        raise ConfigError(
            "ring: stored=… names all tiles of the ring, so that no copy fills any; make it with "
            "written=True and without stored"
        )


def _check_parts(parts: int, slabs: list[int], *, allowed: bool) -> None:
    """Raise `ConfigError` unless tiles with these numbers of slabs may arrive in `parts`, of which there may
    be several if that is `allowed`.
    """
    if not is_count(parts) or (parts > 1 and not allowed) or any(n % parts for n in slabs):
        raise ConfigError(
            "ring: parts is a positive number, 1 unless the ring is made with dealt=True and without "
            f"gathered=True, and divides the slabs of each tile, of which there are {slabs}; got "
            f"{shown(parts)}"
        )


def _as_s32(coordinate: Scalar) -> Scalar:
    """A coordinate as s32, the type in which coordinates are read."""
    return coordinate.as_(s32) if isinstance(coordinate, Value) else coordinate


def _three(name: str, tile: Any) -> tuple[object, object, object]:
    """The shape, the dtype and the swizzle (None: the widest) of a tile of a ring."""
    parts = tile if isinstance(tile, tuple) else ()
    if not 2 <= len(parts) <= 3:
        raise ConfigError(
            f"ring: tile {name!r} must be (shape, dtype) or (shape, dtype, swizzle), such as ((128, 64), "
            f"f16), got {shown(tile)}"
        )
    return (*parts, None)[:3]
