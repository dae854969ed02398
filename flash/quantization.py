"""Numbers in blocks with scales that are powers of two (MXFP8), by the library of the caller's array."""

from __future__ import annotations

import importlib
import math
from typing import Any, Final

import numpy as np

from flash.host.caller import raise_problems, views_of
from flash.launch.arguments import conversion
from flash.operands.declared import MAX_ELEMENTS
from flash.operands.dtype_names import A, Narrow
from flash.operands.dtypes import DTYPES, E8M0, F32, FP8_DTYPES, FP8_NAMES, MX_BLOCK, DType, config_name
from ptxgen.arguments import integer, is_one_of
from ptxgen.errors import ConfigError, did_you_mean, shown

_NAME: Final = "quantize_mx"
_BIAS: Final = 127  # of the exponent of a scale, and the largest
_LIBRARIES: Final = ("numpy", "torch")


def quantize_mx(x: A, dtype: Narrow = "e4m3", *, axis: int = -1) -> tuple[A, A]:
    """Numbers as MXFP8: elements of fp8, and a scale, a power of two, for each 32 neighbours along `axis`.

    x is an array of numpy on the host, or of torch on any device, of float32, float16 or bfloat16. Returns an
    array of the shape of x, of `dtype` ("e4m3" or "e5m2"), and one of float8_e8m0fnu, which has for each
    element along `axis` of x one for 32, of which the last may be fewer. Of Q and K [batch, heads, seq,
    head_dim], `axis` is -1, and of V -2, as `attention` takes them with scale_block="mx"; both results are
    dense. Each number is about the element times its scale: a scale is the least power of two with which no
    element exceeds the largest number of `dtype` (Mishra et al., "Recipes for Pre-training LLMs with MXFP8",
    arXiv 2506.08027), 2^-127 or more, and elements are rounded to nearest even. NaN stays NaN, and infinity
    becomes the largest number, of which scales take no notice.

    Raises `ConfigError` for another dtype, and `LaunchError` for another array or axis.
    """
    name = config_name(dtype)
    if not is_one_of(name, tuple(FP8_DTYPES)):
        raise ConfigError(
            f"{_NAME}: dtype must be {FP8_NAMES}, got {shown(dtype)}{did_you_mean(name, FP8_DTYPES)}"
        )
    element, view = FP8_DTYPES[str(name)], views_of({"x": x}, _NAME)["x"]
    along = integer(axis, -len(view.shape), len(view.shape) - 1)
    problems = []
    if view.kind not in _LIBRARIES:
        problems.append(
            f"x must be an array of numpy or torch, got {type(x).__name__}; convert it, such as with "
            "torch.from_dlpack(x)"
        )
    names = [t.array_name for t in DTYPES.values()]
    if view.dtype not in names:
        cure = conversion("x", view, F32)
        problems.append(f"x must be one of {', '.join(names)}, got {view.dtype}; convert with {cure}")
    if max(view.shape, default=0) > MAX_ELEMENTS:
        problems.append(
            f"x must have at most {MAX_ELEMENTS} elements along each axis, got {list(view.shape)}"
        )
    if along is None:
        problems.append(f"axis must be one of the {len(view.shape)} of x, got {shown(axis)}")
    raise_problems(problems, _NAME)
    assert along is not None  # it is no problem
    library = _Torch() if view.kind == "torch" else _Numpy()
    return _quantized(library, library.numbers(x), along % len(view.shape), element)


class _Numpy:
    """What of numpy differs from torch."""

    def __init__(self, xp: Any = np) -> None:
        self.xp = xp

    def numbers(self, x: Any) -> Any:
        """The numbers as a dense array of f32."""
        return np.ascontiguousarray(x, np.float32)

    def narrowed(self, x: Any, dtype: DType) -> Any:
        """The numbers rounded to a type."""
        return x.astype(dtype.numpy)

    def scales(self, codes: Any) -> Any:
        """The scales with these codes."""
        return np.ascontiguousarray(codes, np.uint8).view(E8M0.numpy)


class _Torch(_Numpy):
    """What of torch differs from numpy."""

    def __init__(self) -> None:
        super().__init__(importlib.import_module("torch"))

    def numbers(self, x: Any) -> Any:
        """See `_Numpy`."""
        return x.float().contiguous()

    def narrowed(self, x: Any, dtype: DType) -> Any:
        """See `_Numpy`."""
        return x.to(getattr(self.xp, dtype.array_name))

    def scales(self, codes: Any) -> Any:
        """See `_Numpy`."""
        return codes.to(self.xp.uint8).contiguous().view(getattr(self.xp, E8M0.array_name))


def _quantized(library: _Numpy, numbers: Any, axis: int, element: DType) -> tuple[Any, Any]:
    """The elements and scales of f32 numbers, in blocks along an axis that is 0 or more."""
    xp, length = library.xp, numbers.shape[axis]
    along = (slice(None),) * axis
    count = -(-length // MX_BLOCK)
    whole = xp.arange(count * MX_BLOCK).clip(max=max(length - 1, 0))  # the last number again in what it lacks
    sizes = xp.where(xp.isfinite(numbers), abs(numbers), xp.zeros_like(numbers))[(*along, whole)]
    shape = (*numbers.shape[:axis], count, MX_BLOCK, *numbers.shape[axis + 1 :])
    significand, exponents = xp.frexp(xp.amax(sizes.reshape(shape), axis + 1))
    of_largest, most = math.frexp(element.largest)
    powers = (exponents - most + (significand > of_largest)).clip(-_BIAS, _BIAS)
    of_each = powers[(*along, xp.arange(length) // MX_BLOCK)]
    scaled = xp.ldexp(numbers, -of_each).clip(-element.largest, element.largest)
    return library.narrowed(scaled, element), library.scales(powers + _BIAS)
