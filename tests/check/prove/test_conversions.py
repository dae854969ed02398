"""Addresses that are converted between spaces, rightly or once too often, as proofs and runs see them.

PTX ISA, "Generic Addressing": only an address in global memory is its own generic address; each other
space has a window among the generic addresses.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from ptxgen import interpreter
from ptxgen.check.prove import Proofs, prove
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.errors import TrapError
from ptxgen.tensormap import TensorMap

SPACES = ("global", "shared", "local", "const", "param")
CONVERSIONS = [f"{name}.{space}" for name in ("cvta", "cvta.to") for space in SPACES]
BEGINNINGS = {
    "a pointer": "ld.param.u64 %rd3, [X];",
    "a shared variable": "mov.u64 %rd3, buf;",
    "a local variable": "mov.u64 %rd3, stack;",
    "a constant": "mov.u64 %rd3, table;",
    "a variable": "mov.u64 %rd3, word;",
    "a parameter": "mov.u64 %rd3, X;",
    "a tensor map": "mov.u64 %rd3, map;",
}
ACCESSES = (
    *("ld.u32 %r1, [%rd3];", "ld.global.u32 %r1, [%rd3];", "ld.global.nc.u32 %r1, [%rd3];"),
    *("ld.shared.u32 %r1, [%rd3];", "st.u32 [%rd3], 7;", "st.global.u32 [%rd3], 7;"),
    *("st.shared.u32 [%rd3], 7;", "cp.async.ca.shared.global [%r8], [%rd3], 4;"),
    "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%rd3, {0}], [%r8];",
)
CONTRACT = GlobalContract(
    (GlobalArray("X", (Axis(8, 4),), 4, 4), GlobalArray("map", (), 32, 16)), (), {}, (1, 1, 1)
)


class Case(NamedTuple):
    """An access to an address that is converted some times on its way from a beginning."""

    beginning: str
    conversions: tuple[str, ...]
    access: str

    @property
    def body(self) -> str:
        converted = "".join(f"{name}.u64 %rd3, %rd3; " for name in self.conversions)
        return f"{BEGINNINGS[self.beginning]} {converted}{self.access}\n"


def kernel(cases: list[Case]) -> str:
    return (
        ".version 8.3\n.target sm_90a\n.address_size 64\n.const .align 4 .b32 table[8];\n"
        ".global .align 4 .b32 word[8];\n"
        ".visible .entry k(.param .u64 X, .param .align 64 .b8 map[128])\n{"
        ".reg .b64 %rd<9>; .reg .b32 %r<9>; .local .align 16 .b8 stack[64];\n"
        ".shared .align 128 .b8 buf[128];\n"
        f"mov.u32 %r8, buf;\n{''.join(case.body for case in cases)}ret;\n}}\n"
    )


def tensor_map() -> TensorMap:
    return TensorMap(np.zeros(8, np.float32), box=(8,))


def proofs(cases: list[Case]) -> Proofs:
    return prove(kernel(cases), block=1, contract=CONTRACT, params={"map": tensor_map()})


def trap(cases: list[Case]) -> str:
    """What stops a run of these accesses; empty if nothing does."""
    args = [np.zeros(8, np.uint32), tensor_map()]
    try:
        interpreter.run(kernel(cases), "k", grid=1, block=1, args=args, sanitize="bounds")
    except TrapError as error:
        return str(error)
    return ""


def proved(cases: list[Case]) -> list[Case]:
    """Those of the cases of which each verdict is `proved`."""
    result = proofs(cases)
    assert result.global_memory is not None
    verdicts: dict[str, set[str]] = {}
    for verdict in (*result.shared.accesses, *result.global_memory.accesses):
        verdicts.setdefault(verdict.where, set()).add(verdict.verdict)
    first = kernel(cases).split("\n").index("mov.u32 %r8, buf;") + 2
    return [
        case
        for line, case in enumerate(cases, first)
        if verdicts.get(f"line {line} of the PTX text") == {"proved"}
    ]


@pytest.mark.parametrize(
    ("most", "accesses"), [(1, (0, 5, 6, 8)), pytest.param(2, range(9), marks=pytest.mark.nightly)]
)
def test_no_access_to_a_converted_address_that_faults_is_proved(most: int, accesses: Sequence[int]) -> None:
    chains = [c for n in range(most + 1) for c in itertools.product(CONVERSIONS, repeat=n)]
    tried = [ACCESSES[n] for n in accesses]
    result = proved([Case(*parts) for parts in itertools.product(BEGINNINGS, chains, tried)])
    assert trap(result) == ""
    right = Counter(case.beginning for case in result if len(case.conversions) <= 1)
    to_global = [access for access in tried if "tensor" not in access and "shared.u32" not in access]
    # A pointer as it is, and converted to or from global memory; a shared variable in its space, and
    # converted to generic addresses; a tensor map in parameter memory converted once.
    assert right["a pointer"] == 3 * len(to_global)
    assert right["a tensor map"] == 1
    assert set(right) == {"a pointer", "a shared variable", "a tensor map"}


COPY = ACCESSES[-1]
# Twins: how an address is converted, rightly and not.
TWINS = {
    "a pointer that is converted as the address of a parameter": (
        Case("a pointer", ("cvta.param",), "st.global.u32 [%rd3], 7;"),
        Case("a pointer", ("cvta.global",), "st.global.u32 [%rd3], 7;"),
    ),
    "a tensor map whose address is not converted": (
        Case("a tensor map", (), COPY),
        Case("a tensor map", ("cvta.param",), COPY),
    ),
    "a tensor map whose address is converted twice": (
        Case("a tensor map", ("cvta.param", "cvta.param"), COPY),
        Case("a tensor map", ("cvta.param",), COPY),
    ),
    "a tensor map whose address is that of a constant": (
        Case("a tensor map", ("cvta.const",), COPY),
        Case("a tensor map", ("cvta.param",), COPY),
    ),
    "a variable that is converted as the address of a parameter": (
        Case("a shared variable", ("cvta.param",), "st.shared.u32 [%rd3], 7;"),
        Case("a shared variable", (), "st.shared.u32 [%rd3], 7;"),
    ),
    "a variable that is converted twice": (
        Case("a shared variable", ("cvta.shared", "cvta.local"), "ld.u32 %r1, [%rd3];"),
        Case("a shared variable", ("cvta.shared",), "ld.u32 %r1, [%rd3];"),
    ),
}


@pytest.mark.parametrize("name", TWINS)
def test_an_address_that_is_converted_wrongly_is_not_proved(name: str) -> None:
    wrong, right = TWINS[name]
    assert trap([wrong])
    assert not proofs([wrong]).complete
    assert trap([right]) == ""
    assert proofs([right]).complete
