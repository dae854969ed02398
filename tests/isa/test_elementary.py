"""Elementary functions have the same bits whatever the last bits of numpy's float64 ones are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxgen.isa import elementary, floating, half
from ptxgen.isa.elementary import Elementary, rounded
from ptxgen.types import ScalarType, bf16, f16, f32

# f32 whose result is at most 100 units in the last place of a float64 from halfway between two f32.
HARD = {
    "EXP2": ["-0x1.b4b452p+0", "-0x1.032d8ep+4", "-0x1.132d8ep+4", "-0x1.232d8ep+4"],
    "LOG2": ["0x1.beafb2p+8", "0x1.beafb2p+9", "0x1.5b2c84p+9", "0x1.b637a2p+8"],
    "TANH": ["0x1.dc0accp-2", "0x1.8bd194p+2", "0x1.4ddf04p+2", "-0x1.f178fcp+0"],
    "SIN": ["-0x1.642422p+4", "0x1.642422p+4", "0x1.b69fe8p+3", "0x1.a03d0ap+4"],
    "COS": ["0x1.21497ep+1", "-0x1.399338p+4", "0x1.399338p+4", "0x1.1cf012p+2"],
}
EVERY_FUNCTION = pytest.mark.parametrize("name", HARD)
# numpy errs by at most 4 units in the last place; the results above are at least 9 from halfway.
SHIFTS = (1 - 2.0**-46, 1 + 2.0**-46)


def hard(name: str) -> Any:
    return np.array([float.fromhex(x) for x in HARD[name]], np.float32)


def near(name: str, x: Any) -> Any:
    """What numpy gives, rounded."""
    return getattr(elementary, name).near(x.astype(np.float64)).astype(np.float32)


def shifted(function: Elementary, factor: float) -> Elementary:
    """The same from a library that errs by this factor."""
    return function._replace(near=lambda x: function.near(x) * factor)


@EVERY_FUNCTION
def test_an_error_of_the_library_changes_no_bit(name: str) -> None:
    function: Elementary = getattr(elementary, name)
    more = np.abs(np.random.default_rng(0).standard_normal(20_000) * 4).astype(np.float32)
    x = np.concatenate([hard(name), more])
    wide, wanted = x.astype(np.float64), near(name, x)
    for factor in SHIFTS:
        other = shifted(function, factor)
        np.testing.assert_array_equal(rounded(other, wide, f32), wanted)
        for one in hard(name).astype(np.float64):  # a single number instead of lanes
            assert rounded(other, one, f32) == near(name, one)
    unguarded = [function.near(wide[:4]) * factor for factor in SHIFTS]
    assert (unguarded[0].astype(np.float32) != unguarded[1].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("name", "instruction", "type"),
    [
        ("EXP2", lambda x: floating.transcendental(x, function=elementary.EXP2, ftz=True), f32),
        ("LOG2", lambda x: floating.transcendental(x, function=elementary.LOG2, ftz=False), f32),
        ("TANH", floating.tanh, f32),
        ("SIN", lambda x: floating.transcendental(x, function=elementary.SIN, ftz=False), f32),
        ("COS", lambda x: floating.transcendental(x, function=elementary.COS, ftz=True), f32),
        ("EXP2", lambda x: half.ex2_f16(x, type=f16), f16),
        ("EXP2", lambda x: half.ex2_bf16(x, ftz=True, type=bf16), bf16),
        ("TANH", lambda x: half.tanh_narrow(x, type=bf16), bf16),
    ],
)
def test_every_instruction_asks_for_it(
    name: str, instruction: Any, type: ScalarType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = hard(name).astype(type.dtype)
    wanted = instruction(x)
    function: Elementary = getattr(elementary, name)
    coarse = shifted(function, 1 + 2.0**-3)
    monkeypatch.setattr(elementary, name, coarse)
    monkeypatch.setattr(elementary, "_BELOW", np.float64(1 - 2.0**-2))
    np.testing.assert_array_equal(instruction(x), wanted)


@pytest.mark.parametrize(
    ("exponent", "type", "wanted"),
    [
        *((-150, f32, 0.0), (-149, f32, 2.0**-149), (-1000, f32, 0.0), (128, f32, np.inf), (-25, f16, 0.0)),
        *((-24, f16, 2.0**-24), (-134, bf16, 0.0), (-133, bf16, 2.0**-133)),
    ],
)
def test_a_power_of_two_halfway_between_two_numbers_is_rounded_to_even(
    exponent: int, type: ScalarType, wanted: float
) -> None:
    x = np.full(3, float(exponent))
    np.testing.assert_array_equal(rounded(elementary.EXP2, x, type).astype(np.float64), wanted)


@EVERY_FUNCTION
def test_the_precise_value_is_the_librarys_to_its_last_bits(name: str) -> None:
    function: Elementary = getattr(elementary, name)
    rng = np.random.default_rng(1)
    sizes = 2.0 ** np.array([-149.0, -60, -20, -1, 0, 3, 6, 60 if name in ("SIN", "COS") else 6.5])
    x = (sizes[:, None] * (1 + rng.random((8, 4)))).astype(np.float32).astype(np.float64).ravel()
    x = x if name == "LOG2" else np.concatenate([x, -x])
    digits = [float(value) for value in elementary.precise_values(function, x)]
    np.testing.assert_allclose(digits, function.near(x), rtol=4 * 2.0**-53)


@pytest.mark.parametrize("x", [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0])
@EVERY_FUNCTION
def test_special_values_are_the_librarys(name: str, x: float) -> None:
    function: Elementary = getattr(elementary, name)
    for type in (f32, f16, bf16):
        with np.errstate(all="ignore"):
            wanted = function.near(np.full(2, x)).astype(type.dtype)
        got = rounded(function, np.full(2, x), type)
        np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))
        np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))
