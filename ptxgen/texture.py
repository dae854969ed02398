"""Textures, which kernels read through a sampler, and surfaces, which they access by coordinates.

A launch passes a `Texture` or a `Surface` where the kernel takes a `cudaTextureObject_t` or a
`cudaSurfaceObject_t`. The dimensions of an array are, slowest first, as usual in numpy: layers (six
faces for each layer of a cube), depth, height, width, and then the channels, if there are several.

The result of a fetch is defined in the CUDA C++ Programming Guide, appendix "Texture Fetching".
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ptxgen.types import ScalarType

    Array = np.ndarray[Any, np.dtype[Any]]

# By the geometry's name in PTX: how many dimensions the array has without channels, and how many
# coordinates a fetch has without the layer and the face.
GEOMETRIES: Final[dict[str, tuple[int, int]]] = {
    "1d": (1, 1),
    "2d": (2, 2),
    "3d": (3, 3),
    "a1d": (2, 1),
    "a2d": (3, 2),
    "cube": (3, 2),
    "acube": (3, 2),
}
OF_SURFACES: Final = ("1d", "2d", "3d", "a1d", "a2d")
FILTERS: Final = ("point", "linear")
ADDRESSES: Final = ("clamp", "border", "wrap", "mirror")
READS: Final = ("element", "normalized")

_PLAIN: Final = {1: "1d", 2: "2d", 3: "3d"}
_CHANNELS: Final = (1, 2, 4)
_ELEMENTS: Final = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32")
_FACES: Final = 6
_RGBA: Final = 4
_FRACTION: Final = 1 << 8  # steps of a filter weight: 9-bit fixed point with 8 fraction bits
_FAR: Final = 1 << 40  # texels; coordinates are clamped to this distance from 0


@dataclass(frozen=True, eq=False)
class _Bound:
    """An array of texels and its geometry `kind`, one of `GEOMETRIES`.

    If `kind` is empty, an array of 1, 2 or 3 dimensions is `1d`, `2d` or `3d` without channels.
    """

    array: Array
    kind: str = ""

    def __post_init__(self) -> None:
        caller = type(self).__name__
        if not isinstance(self.array, np.ndarray):
            raise ConfigError(f"{caller}: wanted a numpy array, got {type(self.array).__name__}")
        if self.array.dtype.name not in _ELEMENTS:
            raise ConfigError(f"{caller}: elements must be of {', '.join(_ELEMENTS)}, got {self.array.dtype}")
        kind = self.kind or _PLAIN.get(self.array.ndim, "")
        known = OF_SURFACES if isinstance(self, Surface) else tuple(GEOMETRIES)
        _one_of(caller, "kind", kind, known)
        object.__setattr__(self, "kind", kind)
        wanted = GEOMETRIES[kind][0]
        channels = self.array.shape[-1] if self.array.ndim == wanted + 1 else 1
        if not wanted <= self.array.ndim <= wanted + 1 or channels not in _CHANNELS:
            raise ConfigError(
                f"{caller}: a {kind} array has {wanted} dimensions, and may have one more of 1, 2 or "
                f"4 channels; got the shape {self.array.shape}"
            )
        if not self.array.size:
            raise ConfigError(f"{caller}: wanted 1 or more texels, got the shape {self.array.shape}")
        if "cube" in kind and (self.layers % _FACES or self.sizes[0] != self.sizes[1]):
            raise ConfigError(
                f"{caller}: a cube has six square faces for each layer, got the shape {self.array.shape}"
            )

    @property
    def texels(self) -> Array:
        """The array as `[layers, depth, height, width, channels]`; absent dimensions are 1."""
        dims, fetched = GEOMETRIES[self.kind]
        array = self.array if self.array.ndim > dims else self.array[..., None]
        layers = array.shape[: dims - fetched] or (1,)
        return array.reshape(*layers, *(1,) * (3 - fetched), *array.shape[dims - fetched :])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Width, height and depth in texels."""
        _, depth, height, width, _ = self.texels.shape
        return width, height, depth

    @property
    def layers(self) -> int:
        """The number of layers; for a cube, the number of all faces."""
        return int(self.texels.shape[0])

    def query(self, what: str) -> int:
        """The value of the attribute `what` of `txq` or `suq`, such as `width` (in texels)."""
        width, height, depth = self.sizes
        faces = _FACES if "cube" in self.kind else 1
        layers = self.layers // faces if self.kind.startswith("a") else 0
        known = {
            "width": width,
            "height": height,
            "depth": depth,
            "array_size": layers,
            "normalized_coords": int(isinstance(self, Texture) and self.normalized),
            "num_mipmap_levels": 1,
        }
        return known[what]


@dataclass(frozen=True, eq=False)
class Texture(_Bound):
    """An array that kernels fetch from (`cudaTextureObject_t`).

    `filter` is `point`, which reads the nearest texel, or `linear`, which interpolates between the
    nearest texels. `address` is the addressing mode outside the array, one for all axes or a tuple
    with one per axis, x first: `clamp` reads the edge, `border` reads zeros, `wrap` and `mirror`
    repeat the texture and need `normalized`, except for cubes. `normalized` coordinates go from 0
    to 1, others from 0 to the size in texels. `read` is `element`, or `normalized`, which reads
    integers of 8 or 16 bits as floating-point numbers from 0 to 1 (unsigned) or from -1 to 1
    (signed).

    Raises `ConfigError` for arguments that CUDA would refuse.
    """

    filter: str = "point"
    address: str | tuple[str, ...] = "clamp"
    normalized: bool = False
    read: str = "element"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("Texture", "filter", self.filter, FILTERS)
        _one_of("Texture", "read", self.read, READS)
        fetched = GEOMETRIES[self.kind][1]
        modes = (self.address,) * fetched if isinstance(self.address, str) else self.address
        if len(modes) != fetched:
            raise ConfigError(
                f"Texture: address must be one mode, or {fetched} for a {self.kind} texture, got "
                f"{self.address!r}"
            )
        for mode in modes:
            _one_of("Texture", "address", mode, ADDRESSES)
            if mode in ("wrap", "mirror") and not (self.normalized or "cube" in self.kind):
                raise ConfigError(f"Texture: {mode} needs normalized=True, got normalized=False")
        object.__setattr__(self, "address", modes)
        dtype = self.array.dtype
        if self.read == "normalized" and (dtype.kind == "f" or dtype.itemsize > 2):
            raise ConfigError(f"Texture: read='normalized' is for integers of 8 or 16 bits, got {dtype}")
        if self.filter == "linear" and not self.is_float:
            raise ConfigError(
                f"Texture: filter='linear' needs floating-point texels, got {dtype}; pass "
                "read='normalized' for integers of 8 or 16 bits"
            )

    @property
    def is_float(self) -> bool:
        """Whether a fetch gives floating-point numbers."""
        return self.read == "normalized" or self.array.dtype.kind == "f"

    def fetch(self, coordinates: Sequence[Array], type: ScalarType) -> tuple[Array, ...]:
        """The four channels that `tex` reads, one array of dtype `type` per channel.

        `coordinates` are one array per operand, with a value per lane: the layer if there are
        layers, then x, y, z. Channels that the texture lacks are 0. Integer coordinates are texel
        indices, whatever `filter`, `address` and `normalized` are; outside the texture they read 0.
        """
        layer, along = self._layer(coordinates)
        if along[0].dtype.kind != "f":
            inside = (layer >= 0) & (layer < self.layers)
            where = [self._texel(c, "border", n) for n, c in enumerate(along)]
            return self._result(self._at(layer, where, inside), type)
        layer = np.clip(layer, 0, self.layers - 1)
        nearest = [self._scaled(c, n) for n, c in enumerate(along)]
        if self.filter == "point":
            where = [
                self._texel(np.floor(c).astype(np.int64), self.address[n], n) for n, c in enumerate(nearest)
            ]
            return self._result(self._at(layer, where), type)
        return self._result(self._between(layer, nearest), type)

    def gather(self, coordinates: Sequence[Array], component: int, type: ScalarType) -> tuple[Array, ...]:
        """The channel `component` of the four texels that `tld4` reads.

        They are the texels between which `linear` would interpolate, counter-clockwise from the
        lower left one, where y grows downwards.
        """
        layer, along = self._layer(coordinates)
        layer = np.clip(layer, 0, self.layers - 1)
        first = [np.floor(self._scaled(c, n) - 0.5).astype(np.int64) for n, c in enumerate(along)]
        texels = []
        for steps in ((0, 1), (1, 1), (1, 0), (0, 0)):
            where = [self._texel(first[n] + step, self.address[n], n) for n, step in enumerate(steps)]
            texels.append(self._result(self._at(layer, where), type)[component])
        return tuple(texels)

    def _layer(self, coordinates: Sequence[Array]) -> tuple[Array, Sequence[Array]]:
        """The layer index (for a cube, the face index) and the coordinates inside the layer."""
        layer: Array = np.zeros(1, np.int64)
        if self.kind.startswith("a"):
            layer, coordinates = coordinates[0].astype(np.int64), coordinates[1:]
        if "cube" in self.kind:
            face, along = _face(*coordinates[:3])
            return np.maximum(layer, 0) * _FACES + face, along
        return layer, coordinates[: GEOMETRIES[self.kind][1]]

    def _scaled(self, coordinate: Array, axis: int) -> Array:
        """A floating-point coordinate along `axis` converted to texels; NaN becomes 0."""
        wide = np.nan_to_num(coordinate.astype(np.float64), nan=0.0)
        if self.normalized or "cube" in self.kind:
            wide = wide * self.sizes[axis]
        clipped: Array = np.clip(wide, -_FAR, _FAR)
        return clipped

    def _texel(self, index: Array, mode: str, axis: int) -> tuple[Array, Array]:
        """The texel index that addressing `mode` gives along `axis`, and whether it is inside."""
        size = self.sizes[axis]
        index = np.asarray(index, np.int64)
        if mode == "border":
            return np.clip(index, 0, size - 1), (index >= 0) & (index < size)
        if mode == "wrap":
            index = index % size
        elif mode == "mirror":
            index = index % (2 * size)
            index = np.where(index < size, index, 2 * size - 1 - index)
        return np.clip(index, 0, size - 1), np.ones(1, np.bool_)

    def _at(self, layer: Array, where: Sequence[tuple[Array, Array]], inside: Array | bool = True) -> Array:
        """The values at texel indices (x first), `[lanes, channels]`; 0 outside the texture."""
        zero = np.zeros(1, np.int64)
        x, y, z = (*(index for index, _ in where), zero, zero)[:3]
        for _, there in where:
            inside = inside & there
        picked = self.texels[np.clip(layer, 0, self.layers - 1), z, y, x]
        return np.where(np.asarray(inside)[..., None], self._numbers(picked), 0)

    def _numbers(self, texels: Array) -> Array:
        if self.read == "normalized":
            most = np.iinfo(texels.dtype).max
            return np.maximum(texels.astype(np.float64) / most, -1.0)
        return texels.astype(np.float64 if texels.dtype.kind == "f" else np.int64)

    def _between(self, layer: Array, nearest: Sequence[Array]) -> Array:
        """Linear filtering: weighted sums of the nearest 2, 4 or 8 texels, `[lanes, channels]`."""
        middle = [c - 0.5 for c in nearest]
        first = [np.floor(c) for c in middle]
        weight = [
            np.floor((c - low) * _FRACTION + 0.5) / _FRACTION for c, low in zip(middle, first, strict=True)
        ]
        total: Array = np.zeros(1)
        for corner in itertools.product((0, 1), repeat=len(first)):
            where = [
                self._texel(low.astype(np.int64) + step, self.address[n], n)
                for n, (low, step) in enumerate(zip(first, corner, strict=True))
            ]
            share: Array = np.ones(1)
            for step, far in zip(corner, weight, strict=True):
                share = share * (far if step else 1 - far)
            # A texel of weight 0 adds 0, even if it is infinite or NaN.
            texels = np.where(share[..., None] > 0, self._at(layer, where), 0.0)
            total = total + share[..., None] * texels
        return total

    def _result(self, texels: Array, type: ScalarType) -> tuple[Array, ...]:
        """The four channels converted to the bits of registers of `type`; absent channels are 0."""
        dtype = type.dtype if self.is_float else np.dtype(np.uint32)
        channels = [texels[..., n] for n in range(texels.shape[-1])]
        channels += [np.zeros_like(channels[0])] * (_RGBA - len(channels))
        return tuple(channel.astype(dtype).view(type.dtype) for channel in channels)


@dataclass(frozen=True, eq=False)
class Surface(_Bound):
    """An array that kernels read and write by coordinates (`cudaSurfaceObject_t`); x is in bytes.

    Raises `ConfigError` for an array that is read-only or not contiguous.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.array.flags.c_contiguous or not self.array.flags.writeable:
            raise ConfigError("Surface: wanted a contiguous array that may be written")

    def load(
        self, coordinates: Sequence[Array], type: ScalarType, count: int, outside: str
    ) -> tuple[Array, ...]:
        """The `count` values of `type` that `suld` loads, one array each; 0 outside the surface.

        `coordinates` are one array per operand: the layer if there are layers, then x in bytes, y,
        z. `outside` is the clamp mode of the instruction.
        """
        offsets, inside = self.offsets(coordinates, type.nbytes * count, outside)
        picked = self._bytes.take(np.where(inside[:, None], offsets, 0))
        values = np.where(inside[:, None], picked, np.uint8(0)).view(type.dtype)
        return tuple(values[:, n] for n in range(count))

    def store(
        self, coordinates: Sequence[Array], type: ScalarType, values: Sequence[Array], outside: str
    ) -> None:
        """Write values as `sust` does; writes outside the surface are dropped.

        Where several lanes write the same byte, the last lane wins.
        """
        offsets, inside = self.offsets(coordinates, type.nbytes * len(values), outside)
        wide = [np.broadcast_to(v, len(offsets)) for v in values]
        data = np.stack(wide, axis=1).astype(type.dtype).view(np.uint8)
        self._bytes[offsets[inside]] = data[inside]

    def offsets(self, coordinates: Sequence[Array], nbytes: int, outside: str) -> tuple[Array, Array]:
        """The byte offsets that accesses of `nbytes` touch, `[lanes, nbytes]`, in the surface.

        The second result says for each lane whether its access is inside the surface. With
        `outside="clamp"`, indices are clamped to the nearest access that is inside.
        """
        layers, depth, height, *line = self.texels.shape
        row = math.prod(line) * self.array.itemsize
        layered = self.kind.startswith("a")
        layer = coordinates[0] if layered else np.zeros(1, np.int64)
        along = [*coordinates[layered : layered + GEOMETRIES[self.kind][1]], *[np.zeros(1)] * 2]
        inside: Array = np.ones(1, np.bool_)
        offset: Array = np.zeros(1, np.int64)
        for axis, size, width in (
            (layer, layers, 1),
            (along[2], depth, 1),
            (along[1], height, 1),
            (along[0], row, nbytes),
        ):
            index = axis.astype(np.int64)
            if outside == "clamp":
                index = np.clip(index, 0, max(size - width, 0))
            inside = inside & (index >= 0) & (index <= size - width)
            offset = offset * size + index
        lanes = np.broadcast(*coordinates).shape[0]
        offset = np.broadcast_to(offset, lanes)
        return offset[:, None] + np.arange(nbytes), np.broadcast_to(inside, lanes)

    @property
    def _bytes(self) -> Array:
        return self.array.reshape(-1).view(np.uint8)


def _face(x: Array, y: Array, z: Array) -> tuple[Array, list[Array]]:
    """The face index of a cube that a direction meets, and the coordinates on it, from 0 to 1.

    CUDA C++ Programming Guide, "Cubemap Textures".
    """
    x, y, z = (np.asarray(c, np.float64) for c in (x, y, z))
    by_x = (abs(x) > abs(y)) & (abs(x) > abs(z))
    by_y = ~by_x & (abs(y) > abs(z))
    largest = np.where(by_x, x, np.where(by_y, y, z))
    back = largest < 0
    face = np.where(by_x, 0, np.where(by_y, 2, 4)) + back
    m = np.where(largest == 0, 1.0, abs(largest))
    s = np.where(by_x, np.where(back, z, -z), np.where(by_y, x, np.where(back, -x, x)))
    t = np.where(by_y, np.where(back, -z, z), -y)
    return face, [(s / m + 1) / 2, (t / m + 1) / 2]


def _one_of(caller: str, what: str, value: object, known: Sequence[str] | Mapping[str, object]) -> None:
    if value not in list(known):
        raise ConfigError(
            f"{caller}: {what} must be one of {', '.join(known)}, got "
            f"{value!r}{did_you_mean(str(value), known)}"
        )
