"""Textures and surfaces as host objects: what they refuse, and what fetches from them give."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from error_texts import refused
from texture_oracle import cube_place, fetched, index_of

from ptxgen.errors import ConfigError
from ptxgen.texture import Surface, Texture
from ptxgen.types import TYPES

F32, S32, U32 = TYPES["f32"], TYPES["s32"], TYPES["u32"]
SHAPES = {"1d": (7,), "2d": (5, 6), "3d": (3, 4, 5), "a1d": (3, 6), "a2d": (3, 4, 5)}
MODES = ("clamp", "border", "wrap", "mirror")
PLACES = 40


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def coordinates(rng: np.random.Generator, sizes: Any, *, normalized: bool) -> list[np.ndarray]:
    """Inside and well outside, at edges and in the middle of texels."""
    result = []
    for size in sizes:
        c = rng.uniform(-1.5 * size, 2.5 * size, PLACES)
        c[:8] = [0, size, size - 0.5, 0.5, -1, -0.5, size / 2, 2 * size]
        result.append((rng.permutation(c) / (size if normalized else 1)).astype(np.float32))
    return result


def rounded(x: Fraction) -> np.float32:
    return np.float32(float(x))  # of few bits more than a double has, which no test comes near


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("filter", ["point", "linear"])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_fetch_gives_what_the_guide_says(
    rng: np.random.Generator, kind: str, filter: str, normalized: bool
) -> None:
    layered = kind.startswith("a")
    array = numbers(rng, *SHAPES[kind], 2)
    sizes = array.shape[layered:-1][::-1]
    for mode in MODES if normalized else MODES[:2]:
        modes = (mode, *["clamp"] * (len(sizes) - 1))
        texture = Texture(array, kind, filter=filter, address=modes, normalized=normalized)
        along = coordinates(rng, sizes, normalized=normalized)
        layer = rng.integers(0, 5, PLACES).astype(np.uint32)
        filled = [*([layer] if layered else []), *along, *[along[0]] * (len(sizes) == 3)]
        got = texture.fetch(filled, F32)
        assert [x.dtype for x in got] == [np.float32] * 4
        for lane, channel in itertools.product(range(PLACES), range(2)):
            data = array[min(layer[lane], 2)] if layered else array
            at = [Fraction(float(c[lane])) for c in along]
            if normalized:
                at = [c * n for c, n in zip(at, sizes, strict=True)]
            want = fetched(data[..., channel], at, sizes, modes, filter == "linear")
            assert got[channel][lane] == rounded(want), (mode, at)
        assert not got[2].any()
        assert not got[3].any()


@pytest.mark.parametrize("kind", SHAPES)
def test_integer_coordinates_are_those_of_a_texel(rng: np.random.Generator, kind: str) -> None:
    array = numbers(rng, *SHAPES[kind])
    along = [rng.integers(-2, n + 2, PLACES).astype(np.int32) for n in array.shape[::-1]]
    layered = kind.startswith("a")
    arguments = [along[-1].astype(np.uint32), *along[:-1]] if layered else along
    (got, *_) = Texture(array, kind, filter="linear").fetch(arguments, F32)
    for lane in range(PLACES):
        where = tuple(int(c[lane]) for c in reversed(along))
        inside = all(0 <= i < n for i, n in zip(where, array.shape, strict=True))
        assert got[lane] == (array[where] if inside else 0)


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("uint8", 0, 1), ("int8", -1, 1), ("uint16", 0, 1), ("int16", -1, 1)]
)
def test_integers_may_be_read_as_fractions_of_their_range(dtype: str, least: int, most: int) -> None:
    limits = np.iinfo(dtype)
    array = np.array([limits.min, limits.min + 1, 0, 1, limits.max], dtype)
    (got, *_) = Texture(array, read="normalized").fetch([np.arange(5, dtype=np.float32)], F32)
    want = [max(Fraction(int(v), limits.max), Fraction(least)) for v in array]
    assert got.tolist() == [rounded(v) for v in want]
    assert got[-1] == most


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32"])
def test_integers_keep_their_bits(dtype: str) -> None:
    limits = np.iinfo(dtype)
    array = np.array([limits.min, 1, limits.max], dtype)
    location = [np.arange(3, dtype=np.float32)]
    assert Texture(array).fetch(location, S32)[0].tolist() == array.astype(np.int32).tolist()
    assert Texture(array).fetch(location, U32)[0].tolist() == array.astype(np.uint32).tolist()


def test_halves_are_fetched_as_numbers() -> None:
    array = np.array([0.5, -2.0, 65504], np.float16)
    (got, *_) = Texture(array, filter="linear").fetch([np.float32([0.5, 1.0, 9])], F32)
    assert got.tolist() == [0.5, -0.75, 65504]


def test_weights_are_in_units_of_1_of_256() -> None:
    texture = Texture(np.array([0, 256], np.float32), filter="linear")
    at = 0.5 + np.array([0, 1 / 512, 0.99 / 512, 3 / 512, 0.25, 511 / 512, 1], np.float32)
    (got, *_) = texture.fetch([at], F32)
    assert got.tolist() == [0, 1, 0, 2, 64, 256, 256]


def test_a_texel_of_no_weight_counts_for_nothing() -> None:
    texture = Texture(np.array([1, np.inf, np.nan], np.float32), filter="linear")
    (got, *_) = texture.fetch([np.array([0.5, 0.25], np.float32)], F32)
    assert got.tolist() == [1, 1]


def test_coordinates_that_are_no_numbers_or_infinite_are_somewhere() -> None:
    texture = Texture(np.array([1, 2], np.float32), filter="linear")
    at = np.array([np.nan, np.inf, -np.inf, 3e38], np.float32)
    assert texture.fetch([at], F32)[0].tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_direction_meets_a_face_of_a_cube(rng: np.random.Generator, layers: int) -> None:
    array = numbers(rng, 6 * layers, 4, 4)
    kind = "cube" if layers == 1 else "acube"
    directions = rng.standard_normal((PLACES, 3)).astype(np.float32)
    directions[:6] = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]
    layer = rng.integers(0, layers, PLACES).astype(np.uint32)
    arguments = [*([layer] if layers > 1 else []), *directions.T]
    (got, *_) = Texture(array, kind, normalized=True).fetch(arguments, F32)
    for lane, direction in enumerate(directions):
        face, s, t = cube_place(*(Fraction(float(c)) for c in direction))
        data = array[(6 * int(layer[lane]) if layers > 1 else 0) + face]
        assert got[lane] == rounded(fetched(data, [4 * s, 4 * t], (4, 4), ("clamp", "clamp")))


@pytest.mark.parametrize("mode", MODES)
def test_a_gather_is_the_four_texels_around(rng: np.random.Generator, mode: str) -> None:
    array = numbers(rng, 3, 4, 2)
    texture = Texture(array, "2d", address=mode, normalized=True)
    along = coordinates(rng, (4, 3), normalized=True)
    got = texture.gather(along, 1, F32)
    for lane in range(PLACES):
        x, y = (Fraction(float(c[lane])) * n for c, n in zip(along, (4, 3), strict=True))
        i, j = ((c - Fraction(1, 2)).__floor__() for c in (x, y))
        for corner, (dx, dy) in enumerate(((0, 1), (1, 1), (1, 0), (0, 0))):
            where = index_of(j + dy, 3, mode), index_of(i + dx, 4, mode)
            want = 0 if None in where else array[(*where, 1)]
            assert got[corner][lane] == want


@pytest.mark.parametrize("kind", SHAPES)
def test_a_surface_is_read_and_written_by_bytes(rng: np.random.Generator, kind: str) -> None:
    array = rng.integers(0, 2**16, (*SHAPES[kind], 2)).astype(np.uint16)
    before, surface = array.copy(), Surface(array, kind)
    sizes = array.shape[:-1][::-1]
    places = [rng.integers(0, n, PLACES).astype(np.int32) for n in sizes]
    layered = kind.startswith("a")
    along = [places[-1], *places[:-1]] if layered else places
    along[layered] = along[layered] * 4
    padded = [*along, *[along[0]] * (len(sizes) == 3)]
    low, high = surface.load(padded, TYPES["b16"], 2, "trap")
    at = tuple(p for p in reversed(places))
    if layered:
        at = (along[0], *reversed([along[1] // 4, *along[2 : len(sizes)]]))
    else:
        at = tuple(reversed([along[0] // 4, *along[1:]]))
    assert np.array_equal(np.stack([low, high], axis=-1), before[at])
    surface.store(padded, TYPES["b16"], [high, low], "trap")
    assert np.array_equal(array[at], before[at][:, ::-1])
    outside = np.ones(before.shape[:-1], bool)
    outside[at] = False
    assert np.array_equal(array[outside], before[outside])


def test_outside_of_a_surface_is_the_nearest_or_nothing() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    surface = Surface(array)
    x, y = np.array([-4, 16, 8, 0]), np.array([0, 1, 9, -1])
    (clamped,) = surface.load([x, y], S32, 1, "clamp")
    assert clamped.tolist() == [0, 7, 10, 0]
    (zero,) = surface.load([x, y], S32, 1, "zero")
    assert zero.tolist() == [0, 0, 0, 0]
    surface.store([x, y], S32, [np.full(4, 99)], "zero")
    assert array.ravel().tolist() == list(range(12))
    surface.store([x, y], S32, [np.array([90, 91, 92, 93])], "clamp")
    assert array.ravel().tolist() == [93, 1, 2, 3, 4, 5, 6, 91, 8, 9, 92, 11]


def test_one_array_may_be_several_coordinates() -> None:
    array = np.arange(64, dtype=np.int32).reshape(8, 8)
    at = np.array([0, 4])
    (got,) = Surface(array).load([at, at], S32, 1, "trap")
    assert got.tolist() == [0, 33]


def test_queries() -> None:
    texture = Texture(np.zeros((2, 3, 4, 2), np.float32), "a2d", normalized=True)
    asked = ("width", "height", "depth", "array_size", "normalized_coords", "num_mipmap_levels")
    assert [texture.query(what) for what in asked] == [4, 3, 1, 2, 1, 1]
    cubes = Texture(np.zeros((12, 4, 4), np.float32), "acube")
    assert [cubes.query(what) for what in asked] == [4, 4, 1, 2, 0, 1]


ZEROS = np.zeros((4, 4), np.float32)
READ_ONLY = ZEROS.copy()
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Texture([1.0]), "Texture: wanted a numpy array, got list"),
        (
            lambda: Texture(np.zeros(4)),
            "Texture: elements must be of uint8, int8, uint16, int16, uint32, int32, float16, "
            "float32, got float64",
        ),
        (
            lambda: Texture(np.zeros((2, 2, 2, 2), np.float32)),
            "Texture: kind must be one of 1d, 2d, 3d, a1d, a2d, cube, acube, got ''",
        ),
        (
            lambda: Texture(ZEROS, "2D"),
            "Texture: kind must be one of 1d, 2d, 3d, a1d, a2d, cube, acube, got '2D'; did you mean '2d'?",
        ),
        (
            lambda: Texture(np.zeros((4, 4, 3), np.float32), "2d"),
            "Texture: a 2d array has 2 dimensions, and may have one more of 1, 2 or 4 channels; "
            "got the shape (4, 4, 3)",
        ),
        (
            lambda: Texture(np.zeros((0, 4), np.float32)),
            "Texture: wanted 1 or more texels, got the shape (0, 4)",
        ),
        (
            lambda: Texture(np.zeros((5, 4, 4), np.float32), "cube"),
            "Texture: a cube has six square faces for each layer, got the shape (5, 4, 4)",
        ),
        (lambda: Texture(ZEROS, filter="cubic"), "Texture: filter must be one of point, linear, got 'cubic'"),
        (
            lambda: Texture(ZEROS, address=("clamp",)),
            "Texture: address must be one mode, or 2 for a 2d texture, got ('clamp',)",
        ),
        (
            lambda: Texture(ZEROS, address="repeat"),
            "Texture: address must be one of clamp, border, wrap, mirror, got 'repeat'",
        ),
        (lambda: Texture(ZEROS, address="wrap"), "Texture: wrap needs normalized=True, got normalized=False"),
        (
            lambda: Texture(ZEROS, read="normalized"),
            "Texture: read='normalized' is for integers of 8 or 16 bits, got float32",
        ),
        (
            lambda: Texture(ZEROS.astype(np.int16), filter="linear"),
            "Texture: filter='linear' needs floating-point texels, got int16; pass "
            "read='normalized' for integers of 8 or 16 bits",
        ),
        (lambda: Surface(ZEROS, "cube"), "Surface: kind must be one of 1d, 2d, 3d, a1d, a2d, got 'cube'"),
        (lambda: Surface(ZEROS.T), "Surface: wanted a contiguous array that may be written"),
        (lambda: Surface(READ_ONLY), "Surface: wanted a contiguous array that may be written"),
    ],
)
def test_what_cuda_refuses_is_refused(make: Any, said: str) -> None:
    with refused(ConfigError, said):
        make()
