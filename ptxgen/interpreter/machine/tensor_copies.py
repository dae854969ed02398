"""Copies of boxes of tensors that tensor maps describe: the operations that their instructions use.

They complete as other bulk copies do (`ptxgen.interpreter.machine.bulk`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import ConfigError
from ptxgen.interpreter.machine import boxes
from ptxgen.interpreter.machine.access import as_address
from ptxgen.interpreter.machine.boxes import Boxes
from ptxgen.interpreter.machine.bulk import UNIT, WORD, BulkMachine
from ptxgen.isa import mbarrier_word
from ptxgen.isa.bulk import REDUCTIONS, unreduced
from ptxgen.tensormap import NBYTES, TensorMap
from ptxgen.types import b64

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.boxes import Part, Reduce
    from ptxgen.interpreter.machine.bulk_start import Start
    from ptxgen.interpreter.machine.observer import Tell

    Lanes = np.ndarray[Any, np.dtype[Any]]

_GAP: Final = 0xA5  # the value of bytes between packed elements, which a copy leaves undefined
_TILE_ALIGN: Final = 128  # bytes: alignment of the image of a box
_CHUNK: Final = np.dtype(np.complex128)  # 16 bytes that numpy moves unchanged


class TensorCopyMachine(BulkMachine):
    """The operations that copies of boxes use."""

    def tensor_load(
        self,
        dst: Lanes,
        map: Lanes,
        coordinates: tuple[Lanes, ...],
        mbarrier: Lanes,
        ctas: Lanes | None,
        *,
        rows: bool,
        pair: bool,
    ) -> None:
        """Start copying a box of the tensor whose map is at generic address `map` to shared `dst`;
        otherwise as `bulk_load`. `coordinates` are those of the box's first element, innermost
        first; with `rows`, a column and the rows of boxes of one row each. With `pair`, the mbarrier may be
        in the other CTA of the destination's pair.
        """
        asked = self._boxes(map, coordinates, rows=rows)
        sizes = np.array([boxes.image_bytes(b.image) for b in asked])
        for n, (start, target, bar, size) in enumerate(self._targets(dst, sizes, mbarrier, active_only=True)):
            self._check_tile(start, target)
            self._check_near(start, target, bar, pair=pair)
            parts = asked[n].parts
            start.reads_global(*boxes.rows_of_all([part for part in parts if part is not None]))
            for position, counter in self._copies_of(start, target, bar, ctas, n, pair=pair):
                image = self._image(asked[n].image, position)
                landed = start.writes(image * UNIT, UNIT, counter)

                def land(
                    start: Start = start,
                    image: Lanes = image,
                    counter: int = counter,
                    of: Boxes = asked[n],
                    landed: Tell = landed,
                ) -> None:
                    for chunks, corner in zip(of.split(image), of.corners, strict=True):
                        self._chunks[chunks] = self._box(start, of.map, corner)
                    landed()
                    self._change(start, counter, mbarrier_word.brought, of.image.box_bytes)

                self._poison(position, size)
                if self.definedness is not None:
                    for chunks, part in zip(asked[n].split(image), parts, strict=True):
                        self.definedness.receives_box(chunks, asked[n].map, part)
                self.agents.add(counter, land)

    def tensor_store(
        self, map: Lanes, coordinates: tuple[Lanes, ...], src: Lanes, op: str, *, rows: bool
    ) -> None:
        """Start copying a box from shared `src` to the tensor whose map is at generic address
        `map`, in the thread's bulk group; or reducing it into the tensor with the operation `op`. With
        `rows`, the coordinates are a column and the rows of boxes of one row each.
        """
        reduce = REDUCTIONS.get(op)
        asked = self._boxes(map, coordinates, rows=rows)
        sources = self.positions(src, UNIT).tolist()
        again = self._repeated(sources, [b.map for b in asked], [b.corners for b in asked])
        for n, source in enumerate(sources):
            start, of = self._start(n), asked[n]
            if why := _not_stored(of.map, op):
                start.refuse(why)
            self._check_tile(start, source)
            self._check_end(start, source, boxes.image_bytes(of.image))

            image = self._image(of.image, source)
            inside = of.inside(image)
            was_read = start.reads(image * UNIT, UNIT)
            rows_inside = boxes.rows_of_all([part for _, part in inside])
            start.writes_global(*rows_inside, reduce, of.map.type, again=again[n])

            def take(image: Lanes = image) -> Lanes:
                return self._chunks[image]

            def put(data: Lanes, start: Start = start, of: Boxes = of) -> None:
                for chunks, part in of.inside(data):
                    self._store_box(start, of.map, part, chunks, reduce)

            if self.definedness is not None:
                for chunks, part in inside:
                    self.definedness.writes_box_back(chunks, of.map, part, reduces=reduce is not None)
            self._send_by_group(start.lane, take, put, was_read)

    # ----------------------------------------------------------------------------------- one lane

    def _boxes(self, map: Lanes, coordinates: tuple[Lanes, ...], *, rows: bool) -> list[Boxes]:
        """The boxes that each active lane copies."""
        maps = self._maps(map, 2 if rows else len(coordinates))
        corners = self._corners(maps, coordinates)
        if not rows:
            return [Boxes(of, of, (corner,)) for of, corner in zip(maps, corners, strict=True)]
        asked = []
        for n, (of, (column, *several)) in enumerate(zip(maps, corners, strict=True)):
            if of.box[1] != 1:
                self._start(n).refuse(
                    f"copies single rows, so the tensor map's box must have 1 row, got the box {of.box}"
                )
            image = boxes.of_rows(of, len(several))
            asked.append(Boxes(of, image, tuple((column, row) for row in several)))
        return asked

    def _maps(self, map: Lanes, rank: int) -> list[TensorMap]:
        """The tensor map of each active lane."""
        address = as_address(map)
        words = [
            word
            for offset in range(0, NBYTES, UNIT)
            for word in self.load("generic", address.base.at(address.offset + offset), b64, 2)
        ]
        lanes = np.stack([self._each(w) for w in words], axis=1).astype(WORD)
        maps = []
        for n, row in enumerate(lanes):
            try:
                of = _decoded(row.tobytes())
            except ConfigError as error:
                self._start(n).refuse(str(error))
            if of.rank != rank:
                self._start(n).refuse(f"gives {rank} coordinates for a tensor map of {of.rank} dimensions")
            maps.append(of)
        return maps

    def _corners(self, maps: list[TensorMap], coordinates: tuple[Lanes, ...]) -> list[tuple[int, ...]]:
        """The coordinates of the box of each active lane."""
        columns = [self._each(c).astype(np.uint32).view(np.int32).tolist() for c in coordinates]
        for n, (of, first) in enumerate(zip(maps, columns[0], strict=True)):
            if why := of.misplaced(first):
                self._start(n).refuse(why)
        return list(zip(*columns, strict=True))

    def _check_near(self, start: Start, position: int, counter: int, *, pair: bool) -> None:
        """Refuse an mbarrier in a CTA that may not count the bytes of a copy to `position`."""
        size = self.batch.cluster_size
        to, at = (p // self.shared.stride % size for p in (position, counter))
        if to != at and not (pair and to // 2 == at // 2):
            wanted = f"of its pair, {to} or {to ^ 1}" if pair else "that the box goes to"
            start.refuse(
                f"copies a box to the CTA of rank {to} and wants the CTA of rank {at} to count its bytes; "
                f"the mbarrier must be in the CTA {wanted}"
            )

    def _check_tile(self, start: Start, position: int) -> None:
        address = position % self.shared.stride
        if address % _TILE_ALIGN:
            start.refuse(
                f"a box lies at a multiple of {_TILE_ALIGN} bytes of shared memory, got {address:#x}"
            )

    def _box(self, start: Start, of: TensorMap, corner: tuple[int, ...]) -> Lanes:
        """The data that a load of a box delivers, as 16-byte chunks."""
        box = boxes.empty_box(of)
        part = boxes.part_inside(of, corner)
        if part is not None:
            data = self._global(start, part.first, part.last - part.first, "read")
            elements = boxes.elements_of(of, part, data, part.first)
            box[part.inside] = boxes.loaded(of, np.ascontiguousarray(elements))
        return boxes.chunks_of(of, box, _GAP).view(_CHUNK).reshape(-1)

    @property
    def _chunks(self) -> Lanes:
        """The shared memory of the batch in units of 16 bytes."""
        return self.shared.window.elements(_CHUNK, 1, 0)

    def _image(self, of: TensorMap, position: int) -> Lanes:
        """The indices in `_chunks` of the image of a box at a position, in the order of the box."""
        cta, address = divmod(position, self.shared.stride)
        index: Lanes = (cta * self.shared.stride + boxes.chunk_addresses(of, address)) // UNIT
        return index

    def _store_box(
        self, start: Start, of: TensorMap, part: Part, chunks: Lanes, reduce: Reduce | None
    ) -> None:
        box = chunks.view(f"u{of.type.nbytes}").reshape(of.box_shape[::-1])[part.inside]
        data = self._global(start, part.first, part.last - part.first, "write")
        elements = boxes.elements_of(of, part, data, part.first)
        if reduce is None:
            elements[...] = box
            return
        old, new = (np.ascontiguousarray(x).view(of.type.dtype) for x in (elements, box))
        elements[...] = reduce(old, new, of.type).view(elements.dtype)


def _not_stored(of: TensorMap, op: str) -> str:
    """Why no box of a map is stored, or reduced into the tensor with `op`; empty if one is."""
    if of.spaced:
        return (
            f"boxes of {of.dtype} are loaded only; PTX stores none of b4x16_p64, and .b6p2x16 is not modelled"
        )
    if op and of.packed:
        return f"boxes of {of.dtype} are not reduced"
    return unreduced(op, of.type) if op else ""


@functools.lru_cache(maxsize=256)
def _decoded(data: bytes) -> TensorMap:
    return TensorMap.decode(data)
