"""Fetches from textures, and accesses to surfaces, by their handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.access import MemoryAccess, as_address
from ptxgen.texture import Surface, Texture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ptxgen.interpreter.machine.memory import Address
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]
    Action = Callable[[Any, Lanes, list[Lanes]], tuple[Lanes, ...]]


class TextureMachine(MemoryAccess):
    """The operations of instructions on textures and surfaces, which launches bind in the arena."""

    def texture_fetch(
        self, handle: Lanes | Address, geometry: str, coordinates: tuple[Lanes, ...], type: ScalarType
    ) -> tuple[Lanes, ...]:
        """The four channels of a texture at coordinates, as `tex` gives them."""

        def fetched(texture: Texture, lanes: Lanes, along: list[Lanes]) -> tuple[Lanes, ...]:
            self._check_type(texture, lanes, type)
            return texture.fetch(along, type)

        return self._by_handle(handle, Texture, geometry, coordinates, fetched, (type,) * 4)

    def texture_gather(
        self,
        handle: Lanes | Address,
        geometry: str,
        coordinates: tuple[Lanes, ...],
        component: int,
        type: ScalarType,
    ) -> tuple[Lanes, ...]:
        """One channel of the four texels around coordinates, as `tld4` gives it."""

        def gathered(texture: Texture, lanes: Lanes, along: list[Lanes]) -> tuple[Lanes, ...]:
            self._check_type(texture, lanes, type)
            return texture.gather(along, component, type)

        return self._by_handle(handle, Texture, geometry, coordinates, gathered, (type,) * 4)

    def texture_query(self, handle: Lanes | Address, query: str) -> Lanes:
        """Property `query` of a texture or a surface, uint32."""
        result = np.zeros(self.selection.count, np.uint32)
        for lanes, bound in self._bound_to(handle, (Texture, Surface)):
            result[lanes] = bound.query(query)
        return result

    def surface_load(
        self,
        handle: Lanes | Address,
        geometry: str,
        coordinates: tuple[Lanes, ...],
        type: ScalarType,
        count: int,
        outside: str,
    ) -> tuple[Lanes, ...]:
        """`count` values of a surface at coordinates, x in bytes. `outside` says what happens to
        accesses outside of it: `trap`, `clamp` or `zero`.
        """

        def loaded(surface: Surface, lanes: Lanes, along: list[Lanes]) -> tuple[Lanes, ...]:
            self._check_coordinates(surface, lanes, along, type.nbytes * count, outside, "read")
            return surface.load(along, type, count, outside)

        return self._by_handle(handle, Surface, geometry, coordinates, loaded, (type,) * count)

    def surface_store(
        self,
        handle: Lanes | Address,
        geometry: str,
        coordinates: tuple[Lanes, ...],
        type: ScalarType,
        values: tuple[Lanes, ...],
        outside: str,
    ) -> None:
        """Write consecutive values to a surface; the arguments are those of `surface_load`."""

        def stored(surface: Surface, lanes: Lanes, along: list[Lanes]) -> tuple[Lanes, ...]:
            # The values follow the coordinates, so that they are cut to the same lanes.
            where, data = along[: len(coordinates)], along[len(coordinates) :]
            self._check_coordinates(surface, lanes, where, type.nbytes * len(data), outside, "write")
            surface.store(where, type, data, outside)
            return ()

        self._by_handle(handle, Surface, geometry, (*coordinates, *values), stored, ())

    # ----------------------------------------------------------------------------------- helpers

    def _by_handle(
        self,
        handle: Lanes | Address,
        wanted: type[Texture] | type[Surface],
        geometry: str,
        coordinates: tuple[Lanes, ...],
        action: Action,
        types: tuple[ScalarType, ...],
    ) -> tuple[Lanes, ...]:
        """The results of `action` for the lanes of each texture or surface, merged."""
        results = [np.zeros(self.selection.count, type.dtype) for type in types]
        wide = [np.broadcast_to(c, self.selection.count) for c in coordinates]
        for lanes, bound in self._bound_to(handle, (wanted,)):
            if bound.kind != geometry:
                self._stop(
                    lanes[0],
                    f"wants a {geometry} {wanted.__name__.lower()}, got a "
                    f"{bound.kind} one; pass one with kind={geometry!r}",
                )
            values = action(bound, lanes, [c[lanes] for c in wide])
            for result, got in zip(results, values, strict=True):
                result[lanes] = got
        return tuple(results)

    def _bound_to(
        self, handle: Lanes | Address, wanted: tuple[type[Texture] | type[Surface], ...]
    ) -> Iterator[tuple[Lanes, Any]]:
        """The textures or surfaces that the handles of active lanes stand for, each with its lanes."""
        address = as_address(handle)
        handles = np.broadcast_to(address.signed() + address.offset, self.selection.count)
        active = self.active()
        for number in np.unique(handles[active]).tolist():
            lanes = np.flatnonzero(active & (handles == number))
            bound = self.arena.bound.get(number)
            if not isinstance(bound, wanted):
                names = " or ".join(one.__name__ for one in wanted)
                self._stop(
                    lanes[0],
                    f"wants a {names.lower()}, but {number:#x} is the handle of "
                    f"none; pass a ptxgen.texture.{names} as the argument",
                )
            yield lanes, bound

    def _check_type(self, texture: Texture, lanes: Lanes, type: ScalarType) -> None:
        if texture.is_float != type.is_float:
            has = "floating-point numbers" if texture.is_float else "integers"
            self._stop(lanes[0], f"wants {type} values of a texture whose fetches give {has}")

    def _check_coordinates(
        self, surface: Surface, lanes: Lanes, along: list[Lanes], nbytes: int, outside: str, verb: str
    ) -> None:
        x = along[surface.kind.startswith("a")].astype(np.int64)
        _, inside = surface.offsets(along, nbytes, outside)
        stops = ~inside if outside == "trap" else np.zeros_like(inside)
        for wrong, what in (
            (stops, f"outside of its shape {surface.array.shape}"),
            (inside & (x % nbytes != 0), f"where x is not a multiple of {nbytes}"),
        ):
            if wrong.any():
                at = int(np.argmax(wrong))
                where = ", ".join(str(int(c[at])) for c in along)
                self._stop(
                    lanes[at],
                    f"wants to {verb} {nbytes} bytes of a {surface.kind} surface at ({where}), {what}",
                )

    def _stop(self, lane: np.integer[Any], why: str) -> NoReturn:
        raise TrapError(f"{self._where(int(self.selection.ids[lane]))} {why}")
