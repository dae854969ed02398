"""Tensor maps with other boxes than the kernel for Hopper has tiles for: something notices each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ptxgen import interpreter
from ptxgen.check.prove import prove
from ptxgen.errors import ConfigError, TrapError
from ptxgen.mutation.kernel_under_test import KernelUnderTest, Launch
from ptxgen.tensormap import TensorMap
from tools.campaign.kernels import subjects

SUBJECT = "f16-sm_90a"
MAPS = ("Q_map", "K_map", "V_map", "O_map")


def boxes(of: TensorMap) -> list[TensorMap]:
    """Maps of the same tensor with another box or another swizzle, as far as the driver takes them."""
    columns, rows, *outer = of.box
    changed: list[dict[str, Any]] = [
        {"box": (columns, rows + step, *outer)} for step in (-8, -1, 1, 8) if rows + step > 0
    ]
    # Half of the columns would hold all 24 columns of O.
    changed += [{"box": (columns // 4, rows, *outer)}, {"box": (columns, rows, 2, 1)}]
    changed += [{"swizzle": name} for name in ("none", "32B", "64B") if name != of.swizzle]
    result = []
    for change in changed:
        try:
            result.append(replace(of, **change))
        except ConfigError:
            continue  # nor does the driver take it
    return result


def launched(subject: KernelUnderTest, name: str, given: TensorMap) -> str:
    """Who notices a launch in which a tensor map has the box and the swizzle of another: "" if nobody."""
    prepared: Launch = subject.prepare(subject.problems[0])
    args = list(prepared.how["args"])
    (kernel,) = subject.module.kernels
    at = [param.name for param in kernel.params].index(name)
    args[at] = TensorMap(args[at].base, given.box, swizzle=given.swizzle)
    try:
        done = interpreter.run(
            subject.module,
            subject.entry,
            **{**prepared.how, "args": args},
            sanitize=True,
            raise_on_report=False,
            max_instructions=10_000,
        )
    except TrapError as error:
        return f"trap: {error}"
    return str(done.reports[0]) if done.reports else prepared.wrong(done)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MAPS)
def test_no_other_box_goes_unnoticed(name: str) -> None:
    subject = subjects()[SUBJECT]
    right = subject.params[name]
    assert launched(subject, name, right) == ""
    others = boxes(right)
    assert len(others) >= 5
    for other in others:
        maps = {**subject.params, name: other}
        proof = prove(subject.module, subject.entry, block=subject.block, params=maps).shared
        assert not proof.complete or launched(subject, name, other), other


def test_a_box_that_is_larger_than_its_tile_is_not_proved() -> None:
    subject = subjects()[SUBJECT]
    (columns, rows, *outer) = subject.params["K_map"].box
    wider = replace(subject.params["K_map"], box=(columns, rows + 1, *outer))
    result = prove(
        subject.module, subject.entry, block=subject.block, params={**subject.params, "K_map": wider}
    )
    (unknown,) = result.shared.unknown
    assert unknown.reason.startswith("perhaps bytes 2048 to 4223 are outside ring_2_k, which has 4096 bytes")
