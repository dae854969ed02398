"""Conversions that round by random bits (PTX ISA, "Data Movement and Conversion Instructions: cvt").

Texts with them are read, verified and printed. The rows have no meaning: which random bits decide about
which element is not documented well enough to compute the bits that a GPU gives.
"""

from __future__ import annotations

from typing import Any, Final

from ptxgen.isa.declare import inst
from ptxgen.isa.memory import MOVEMENT
from ptxgen.types import bf16x2, f16x2

_RANDOM: Final[dict[str, Any]] = {
    "ptx": (8, 7),
    "sm": 100,
    "only": ("sm_100a", "sm_103a"),
    "unmodelled": "the bits that its random bits round to are not known",
    "section": f"{MOVEMENT}: cvt",
}


@inst(
    "cvt.rs{.relu}{.satfinite}.dtype.f32 d:dtype, a:f32, b:f32, random:b32",
    name="cvt_rs",
    dtype=(f16x2, bf16x2),
    **_RANDOM,
)
def cvt_rs() -> None:
    """d = a, in the upper half, and b, each rounded up or down by random bits."""


@inst(
    "cvt.rs{.relu}.satfinite.dtype.f32 d:b32, a:f32*4, random:b32",
    name="cvt_rs_four",
    dtype=("e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4"),
    **_RANDOM,
)
def cvt_rs_four() -> None:
    """d = the elements of a, the first in the highest byte, each rounded up or down by random bits."""


@inst("cvt.rs{.relu}.satfinite.e2m1x4.f32 d:b16, a:f32*4, random:b32", name="cvt_rs_e2m1x4", **_RANDOM)
def cvt_rs_e2m1() -> None:
    """d = the elements of a, the first in the highest 4 bits, each rounded up or down by random bits."""
