"""Numbers in blocks with scales, MXFP8 and NVFP4, and rows of a KV cache of a narrow type, by the library of
the caller's array.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from flash.host.caller import raise_problems, views_of
from flash.host.stored_rows import stored, token_scales
from flash.launch.arguments import conversion
from flash.operands.blocks import BLOCK, CACHED_DTYPES, block_type
from flash.operands.declared import MAX_ELEMENTS
from flash.operands.dtype_names import A, AnyArray, Cached, Narrow
from flash.operands.dtypes import (
    DTYPES,
    E4M3,
    E8M0,
    F32,
    FP8_DTYPES,
    FP8_NAMES,
    I32,
    MX_BLOCK,
    NVFP4,
    DType,
    config_name,
)
from ptxgen.arguments import integer, is_one_of
from ptxgen.arrays.views import HOST, ArrayView, host_array
from ptxgen.errors import ConfigError, did_you_mean, shown

_NAME: Final = "quantize_mx"
_NV: Final = "quantize_nvfp4"
_ROWS: Final = "quantize_rows"
_BIAS: Final = 127  # of the exponent of a scale, and the largest
_LIBRARIES: Final = ("numpy", "torch")
LARGEST_OF_FOUR_BITS: Final = 6.0  # of e2m1
# Halfway between each magnitude of e2m1 and the next one; a tie goes to the one whose code is even.
_MIDDLES: Final = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_SIGN: Final = 8  # of e2m1
_HALF: Final = 16  # the upper half of a byte over the lower


def quantize_mx(
    x: A, dtype: Narrow = "e4m3", *, axis: int = -1, cu_seqlens: AnyArray | None = None
) -> tuple[A, A]:
    """Numbers as MXFP8: elements of fp8, and a scale, a power of two, for each 32 neighbours along `axis`.

    x is an array of numpy on the host, or of torch on any device, of float32, float16 or bfloat16. Returns an
    array of the shape of x, of `dtype` ("e4m3" or "e5m2"), and one of float8_e8m0fnu, which has for each
    element along `axis` of x one for 32, of which the last may be fewer. Of Q and K [batch, heads, seq,
    head_dim], `axis` is -1, and of V -2, as `attention` takes them with scale_block="mx"; both results are
    dense. Each number is about the element times its scale: a scale is the least power of two with which no
    element exceeds the largest number of `dtype` (Mishra et al., "Recipes for Pre-training LLMs with MXFP8",
    arXiv 2506.08027), 2^-127 or more, and elements are rounded to nearest even. NaN stays NaN, and infinity
    becomes the largest number, of which scales take no notice.

    With `cu_seqlens`, int32 [batch + 1] of the library and the device of x, blocks begin anew with each
    packed sequence, as `attention_varlen` takes V (`axis=0`): along `axis` there are ceil(n / 32) + batch
    scales, and those of sequence b begin with scale cu_seqlens[b] // 32 + b. Rows and scales of no sequence
    are some finite numbers if x is finite. V in pages needs no `cu_seqlens`: pages are whole blocks.

    Raises `ConfigError` for another dtype, and `LaunchError` for another array, axis or `cu_seqlens`, whose
    numbers are not checked.
    """
    name = config_name(dtype)
    if not is_one_of(name, tuple(FP8_DTYPES)):
        raise ConfigError(
            f"{_NAME}: dtype must be {FP8_NAMES}, got {shown(dtype)}{did_you_mean(name, FP8_DTYPES)}"
        )
    element, view = FP8_DTYPES[str(name)], views_of({"x": x}, _NAME)["x"]
    along = integer(axis, -len(view.shape), len(view.shape) - 1)
    problems = [*_array_problems(x, view)]
    if along is None:
        problems.append(f"axis must be one of the {len(view.shape)} of x, got {shown(axis)}")
    if cu_seqlens is not None:
        problems += _ends_problems(view, views_of({"cu_seqlens": cu_seqlens}, _NAME)["cu_seqlens"])
    raise_problems(problems, _NAME)
    assert along is not None  # it is no problem
    library, along = _library_of(view), along % len(view.shape)
    blocks = _blocks(library, view.shape[along], cu_seqlens)
    return _quantized(library, library.numbers(x), along, element, blocks)


def quantize_nvfp4(x: A) -> tuple[A, A]:
    """Numbers as NVFP4: elements of four bits (e2m1: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and their negatives), and
    a scale for each 16 neighbours of a row.

    x [..., n] is an array of numpy on the host, or of torch on any device, of float32, float16 or bfloat16; n
    is a multiple of 16. Returns uint8 [..., n / 2], whose bytes have two elements each, the first in the
    lower half (float4_e2m1fn_x2 of torch by `.view`), and float8_e4m3fn [..., n / 16]: Q and K as `attention`
    takes them with scale_block="nv"; both results are dense. Each number is about the element times its
    scale, which is the largest magnitude of the block over 6, at most 448, rounded to nearest even, as
    NVIDIA's Transformer Engine has it; elements are rounded to nearest even, and are at most 6. A block with
    a NaN has a scale of NaN; infinity becomes 6, and scales take no notice of it.

    Scales have no factor for all of x: they are 2⁻⁹ or more, so that blocks whose magnitudes are below 6·2⁻¹⁰
    become 0, and at most 448, so that magnitudes above 2688 become that. Of such Q or K multiply x by a power
    of two before, and divide softmax_scale by it.

    Raises `LaunchError` for another array.
    """
    view = views_of({"x": x}, _NV)["x"]
    problems = [*_array_problems(x, view)]
    if not view.shape or view.shape[-1] % NVFP4.size:
        problems.append(
            f"x must have a last dimension of multiples of {NVFP4.size}, got shape {list(view.shape)}; pad "
            "it with zeros"
        )
    raise_problems(problems, _NV)
    library = _library_of(view)
    return _quantized_by_four_bits(library, library.numbers(x))


def quantize_rows(x: A, dtype: Cached) -> tuple[A, A | None]:
    """Rows of K or V as a `KVCache` of `dtype` stores them.

    x [..., n] is an array of numpy, or of torch on the host, of float32, float16 or bfloat16. Returns rows
    and scales: of "e4m3", "e5m2" and "int8" an array of that type of the shape of x, and float32 [...], for
    each row what its numbers are multiplied by, as with `scale_per="token"`; of "q8_0" and "q4_0" the bytes
    of blocks, uint8 [..., n / 32 * 34] or [..., n / 32 * 18], and None. `docs/kv-cache.md` says how numbers
    are rounded.

    Raises `ConfigError` for another dtype, and `LaunchError` for another array.
    """
    name, view = config_name(dtype), views_of({"x": x}, _ROWS)["x"]
    if not is_one_of(name, tuple(CACHED_DTYPES)):
        known = ", ".join(map(repr, CACHED_DTYPES))
        raise ConfigError(
            f"{_ROWS}: dtype must be one of {known}, got {shown(dtype)}{did_you_mean(name, CACHED_DTYPES)}"
        )
    stored_as = CACHED_DTYPES[str(name)]
    of, problems = block_type(stored_as), [*_array_problems(x, view)]
    if view.device != HOST:
        problems.append(f"x must be on the host, got {view.device_name}; copy it there")
    if not view.shape or 0 in view.shape or (of is not None and view.shape[-1] % BLOCK):
        multiples = "" if of is None else f" in multiples of {BLOCK}"
        problems.append(f"x must have rows of elements{multiples}, got shape {list(view.shape)}")
    raise_problems(problems, _ROWS)
    library, new = _library_of(view), host_array(view)
    scales = token_scales(new, stored_as) if stored_as.has_scales else None
    rows = library.taken(stored(new, stored_as, scales))
    return rows, None if scales is None else library.taken(scales[..., 0])


def _array_problems(x: object, view: ArrayView) -> Iterator[str]:
    """Say why an array cannot be quantized."""
    if view.kind not in _LIBRARIES:
        yield (
            f"x must be an array of numpy or torch, got {type(x).__name__}; convert it, such as with "
            "torch.from_dlpack(x)"
        )
    names = [t.array_name for t in DTYPES.values()]
    if view.dtype not in names:
        cure = conversion("x", view, F32)
        yield f"x must be one of {', '.join(names)}, got {view.dtype}; convert with {cure}"
    if max(view.shape, default=0) > MAX_ELEMENTS:
        yield f"x must have at most {MAX_ELEMENTS} elements along each axis, got {list(view.shape)}"


def _ends_problems(x: ArrayView, ends: ArrayView) -> Iterator[str]:
    """Say why the array with the ends of sequences cannot be taken."""
    wanted = x.kind, x.device, I32.array_name
    if (ends.kind, ends.device, ends.dtype) != wanted or len(ends.shape) != 1 or not ends.size:
        yield (
            f"cu_seqlens must be int32 [batch + 1] of {x.kind} on {x.device_name}, as x is, got {ends.dtype} "
            f"{list(ends.shape)} of {ends.kind} on {ends.device_name}"
        )


class _Numpy:
    """The operations of quantization by numpy, where they differ from those by torch."""

    def __init__(self, xp: Any = np) -> None:
        self.xp = xp

    def numbers(self, x: Any) -> Any:
        """The elements of the caller's array as a dense float32 array."""
        return np.ascontiguousarray(x, np.float32)

    def narrowed(self, x: Any, dtype: DType) -> Any:
        """The f32 numbers of an array rounded to an element type."""
        return x.astype(dtype.numpy)

    def indices(self, count: int, of: Any) -> Any:
        """0, 1, … `count` - 1 on the device of an array."""
        del of
        return np.arange(count)

    def bytes_of(self, codes: Any) -> Any:
        """The integers of an array as bytes, uint8."""
        return np.ascontiguousarray(codes, np.uint8)

    def taken(self, array: Any) -> Any:
        """A numpy array converted to an array of this library."""
        return array

    def scales(self, codes: Any) -> Any:
        """The f32 scales that scale codes (bytes) stand for."""
        return self.bytes_of(codes).view(E8M0.numpy)


class _Torch(_Numpy):
    """The operations of quantization by torch, where they differ from those by numpy."""

    def __init__(self) -> None:
        super().__init__(importlib.import_module("torch"))

    def numbers(self, x: Any) -> Any:
        """See `_Numpy`."""
        return x.float().contiguous()

    def narrowed(self, x: Any, dtype: DType) -> Any:
        """See `_Numpy`."""
        return x.to(getattr(self.xp, dtype.array_name))

    def indices(self, count: int, of: Any) -> Any:
        """See `_Numpy`."""
        return self.xp.arange(count, device=of.device)

    def bytes_of(self, codes: Any) -> Any:
        """See `_Numpy`."""
        return codes.to(self.xp.uint8).contiguous()

    def taken(self, array: Any) -> Any:
        """See `_Numpy`."""
        plain = array.view(np.uint8) if array.itemsize == 1 else array  # torch reads no types of ml_dtypes
        return self.xp.from_numpy(plain).view(getattr(self.xp, array.dtype.name))

    def scales(self, codes: Any) -> Any:
        """See `_Numpy`."""
        return self.bytes_of(codes).view(getattr(self.xp, E8M0.array_name))


def _library_of(view: ArrayView) -> _Numpy:
    return _Torch() if view.kind == "torch" else _Numpy()


class _Blocks(NamedTuple):
    """The blocks along an axis: `members` has the `MX_BLOCK` indices of each, some of which may occur twice,
    and `of_each` the block of each index.
    """

    members: Any
    of_each: Any


def _blocks(library: _Numpy, length: int, ends: Any) -> _Blocks:
    """The blocks along an axis of `length` elements, which begin anew at `ends`, unless that is None."""
    xp, last, count = library.xp, max(length - 1, 0), -(-length // MX_BLOCK)
    if ends is None or len(ends) == 1 or not length:
        # The last number again in what the last block lacks.
        return _Blocks(xp.arange(count * MX_BLOCK).clip(max=last), xp.arange(length) // MX_BLOCK)
    ends = xp.asarray(ends, dtype=xp.int64)
    begins, stops, sequences = ends[:-1], ends[1:], len(ends) - 1
    firsts = begins // MX_BLOCK + library.indices(sequences, ends)
    block, each = (library.indices(n, ends) for n in (count + sequences, length))
    of_block = (xp.searchsorted(firsts, block, side="right") - 1).clip(min=0)
    members = begins[of_block] + MX_BLOCK * (block - firsts[of_block])
    members = xp.minimum(members[:, None] + library.indices(MX_BLOCK, ends), stops[of_block][:, None] - 1)
    of = xp.searchsorted(stops, each, side="right").clip(max=sequences - 1)
    of_each = firsts[of] + (each - begins[of]) // MX_BLOCK
    return _Blocks(members.reshape(-1).clip(0, last), of_each.clip(0, count + sequences - 1))


def _quantized(library: _Numpy, numbers: Any, axis: int, element: DType, blocks: _Blocks) -> tuple[Any, Any]:
    """The elements and scales of f32 numbers, in blocks along an axis that is 0 or more."""
    xp, along = library.xp, (slice(None),) * axis
    sizes = xp.where(xp.isfinite(numbers), abs(numbers), xp.zeros_like(numbers))[(*along, blocks.members)]
    shape = (*numbers.shape[:axis], len(blocks.members) // MX_BLOCK, MX_BLOCK, *numbers.shape[axis + 1 :])
    significand, exponents = xp.frexp(xp.amax(sizes.reshape(shape), axis + 1))
    of_largest, most = math.frexp(element.largest)
    powers = (exponents - most + (significand > of_largest)).clip(-_BIAS, _BIAS)
    scaled = xp.ldexp(numbers, -powers[(*along, blocks.of_each)]).clip(-element.largest, element.largest)
    return library.narrowed(scaled, element), library.scales(powers + _BIAS)


def _quantized_by_four_bits(library: _Numpy, numbers: Any) -> tuple[Any, Any]:
    """The elements and scales of rows of f32 numbers."""
    xp, shape = library.xp, numbers.shape
    blocks = numbers.reshape(*shape[:-1], shape[-1] // NVFP4.size, NVFP4.size)
    sizes = xp.where(xp.isinf(blocks), xp.zeros_like(blocks), abs(blocks))
    scales = library.narrowed((xp.amax(sizes, -1) / LARGEST_OF_FOUR_BITS).clip(max=E4M3.largest), E4M3)
    wide = library.numbers(scales)[..., None]
    scaled = xp.where(wide > 0, blocks, xp.zeros_like(blocks)) / xp.where(wide > 0, wide, xp.ones_like(wide))
    codes = _SIGN * xp.signbit(scaled)
    for code, middle in enumerate(_MIDDLES):
        codes = codes + ((abs(scaled) >= middle) if code % 2 else (abs(scaled) > middle))
    codes = codes.reshape(shape)
    return library.bytes_of(codes[..., ::2] + _HALF * codes[..., 1::2]), scales
