"""What is recorded on a GPU: small kernels with their inputs, and how their results compare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ptxgen.isa.spec import Op
from ptxgen.target import TARGETS
from ptxgen.tensormap import TensorMap

Array = np.ndarray[Any, np.dtype[Any]]
MapSettings = dict[str, Any]  # the keyword arguments of a TensorMap but its base

RULES: Final = ("exact", "approximate", "sum")
_HEAD: Final = re.compile(r"\.version (\d+\.\d+)\n\.target (\w+)\n")


def head_of(version: tuple[int, ...], target: str) -> str:
    """The first lines of a text."""
    return ".version {}.{}\n.target {}\n".format(*version, target)


@dataclass(frozen=True)
class Case:
    """One launch of a kernel `k` whose parameters are the inputs (addresses, or tensor maps where
    `maps` has settings), then the output.

    `rule` is one of RULES: results are equal bit for bit (but NaN to any NaN); or within what the
    row of `opcode` promises; or equal bit for bit, and sums of products, whose errors are told as
    shares of the sums of the products' magnitudes. For these, `signs` has a mask for each input that
    clears the signs of its elements (None: leave it). `element` is the type of an element of the
    output.
    """

    name: str
    ptx: str
    inputs: tuple[Array, ...]
    shape: tuple[int, ...]
    dtype: str
    element: str
    rule: str
    opcode: str
    grid: int = 1
    block: int = 32
    signs: tuple[int | None, ...] = ()
    maps: tuple[MapSettings | None, ...] = field(default=())

    @property
    def target(self) -> str:
        """What the text is for."""
        return self._head[2]

    @property
    def _head(self) -> re.Match[str]:
        result = _HEAD.match(self.ptx)
        assert result is not None
        return result

    def on(self, target: str) -> Case:
        """The case with its text for another target, whose tensor cores may add in another way."""
        written = tuple(int(n) for n in self._head[1].split("."))
        head = head_of(max(written, TARGETS[target].ptx), target)
        return replace(self, ptx=head + self.ptx[self._head.end() :])

    def arguments(self, out: Array, inputs: Sequence[Array] | None = None) -> list[Any]:
        """What the kernel is launched with."""
        arguments = self.inputs if inputs is None else inputs
        maps = self.maps or (None,) * len(arguments)
        pairs = zip(arguments, maps, strict=True)
        return [*(x if m is None else TensorMap(x, **m) for x, m in pairs), out]


_DECLARED: Final = {
    "b16": "b16",
    "b32": "b32",
    "b64": "b64",
    "f16": "b16",
    "bf16": "b16",
    "f16x2": "b32",
    "bf16x2": "b32",
}
_BODY: Final = """\
{head}.address_size 64
.visible .entry k({params})
{{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
{body}
    ret;
}}
"""


def kernel(
    params: Iterable[str], body: str, *, target: str = "sm_75", version: tuple[int, int] = (7, 0)
) -> str:
    """A kernel `k`; a parameter is `name`, the address of an array, or `map name`."""
    declared = [
        f".param .align 64 .b8 {p.split()[1]}[128]" if p.startswith("map ") else f".param .b64 {p}"
        for p in params
    ]
    head = head_of(max(version, TARGETS[target].ptx), target)
    return _BODY.format(head=head, params=", ".join(declared), body=body)


# %rd0 = the number of this thread in the grid.
LANE: Final = """\
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.u32 %r0, %r1, %r2, %r0;
    cvt.u64.u32 %rd0, %r0;
"""


def oldest_target(op: Op) -> str:
    """The oldest target that has the op."""
    ordered = sorted(TARGETS.values(), key=lambda t: (t.sm, t.suffix))
    return next(t.name for t in ordered if op.gate.admits(t))


def register_kernel(op: Op, lanes: int) -> str:
    """Applies an op to registers that are read from one array for each source,
    `[registers, lanes]`, and writes those of its result in the same way.
    """
    body, names = [LANE], []
    for operand in op.operands:
        assert operand.type is not None
        count, nbytes = max(operand.count, 1), operand.type.nbytes
        letter = operand.name
        declared = _DECLARED.get(operand.type.name, operand.type.name)
        body.append(f"    .reg .{declared} %{letter}_<{count}>;\n")
        names.append([f"%{letter}_{n}" for n in range(count)])
        if operand.written:
            continue
        bits = f"b{8 * nbytes}"
        body.append(f"    ld.param.b64 %rd1, [{letter}];\n")
        body.append(f"    mad.lo.u64 %rd1, %rd0, {nbytes}, %rd1;\n")
        body += [f"    ld.global.{bits} %{letter}_{n}, [%rd1+{n * lanes * nbytes}];\n" for n in range(count)]
    printed = [f"{{{', '.join(ns)}}}" if o.count else ns[0] for o, ns in zip(op.operands, names, strict=True)]
    body.append(f"    {op.opcode} {', '.join(printed)};\n")
    (dest,) = op.dests
    assert dest.type is not None
    nbytes = dest.type.nbytes
    body.append("    ld.param.b64 %rd1, [out];\n")
    body.append(f"    mad.lo.u64 %rd1, %rd0, {nbytes}, %rd1;\n")
    body += [
        f"    st.global.b{8 * nbytes} [%rd1+{n * lanes * nbytes}], %{dest.name}_{n};\n"
        for n in range(max(dest.count, 1))
    ]
    target = oldest_target(op)
    params = [*(o.name for o in op.sources), "out"]
    return kernel(params, "".join(body), target=target, version=op.gate.ptx)


def register_case(op: Op, inputs: Sequence[Array], rule: str, *, element: str = "", **more: Any) -> Case:
    """A case of an op on registers; each input is `[registers, lanes]`, its bits unsigned."""
    lanes = inputs[0].shape[-1]
    block = min(lanes, 256)
    assert lanes % block == 0
    (dest,) = op.dests
    assert dest.type is not None
    return Case(
        name=op.opcode,
        ptx=register_kernel(op, lanes),
        inputs=tuple(inputs),
        shape=(max(dest.count, 1), lanes),
        dtype=f"uint{8 * dest.type.nbytes}",
        element=element or dest.type.name,
        rule=rule,
        opcode=op.opcode,
        grid=lanes // block,
        block=block,
        **more,
    )
