"""Compares the contract of a kernel's launches for hosts with what the proof of its accesses assumes."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any

from flash.contract.built_kernel import BuiltKernel
from ptxgen.contract.expressions import Expression, evaluated, expression

NBYTES = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2, "e4m3": 1}


def assert_says_what_the_proof_assumes(
    kernel: BuiltKernel, of_hosts: Mapping[str, Expression] | None = None
) -> dict[str, Any]:
    """Compare arrays, tensor maps, sizes and grid, with a value of its own for each name; `of_hosts` has what
    sizes are equal to for hosts alone. Returns the contract, read from its JSON.
    """
    contract: dict[str, Any] = json.loads(json.dumps(kernel.contract))
    promised, sizes = kernel.promised, contract["sizes"]
    in_json = [p["name"] for p in contract["parameters"]]
    values = {name: n for n, name in enumerate([*in_json, *sizes], start=7)}
    of_text = dict(zip((p.name for p in kernel.kernel.params), in_json, strict=True))
    proved = {name: values[of_text.get(name, name)] for name in (*of_text, *sizes)}
    maps = {p["name"]: p["tensor_map"] for p in contract["parameters"] if p["kind"] == "tensor_map"}
    assert [*(array["name"] for array in contract["arrays"]), *maps] == [a.pointer for a in promised.arrays]
    for array in promised.arrays[len(contract["arrays"]) :]:
        of_map = maps[array.pointer]
        columns, *extents = of_map["dims"]
        assert [
            (evaluated(extent, values), evaluated(stride, values))
            for extent, stride in zip(extents[::-1], of_map["strides"][::-1], strict=True)
        ] == [
            tuple(promised.value(each, proved, operator.floordiv) for each in (axis.extent, axis.stride))
            for axis in array.axes
        ]
        assert (columns * NBYTES[of_map["dtype"]], of_map["alignment"]) == (array.nbytes, array.align)
    for of_host, array in zip(contract["arrays"], promised.arrays, strict=False):
        nbytes = NBYTES[of_host["type"]]
        assert [
            (evaluated(d["extent"], values), evaluated(d["stride"], values) * nbytes) for d in of_host["dims"]
        ] == [
            tuple(promised.value(each, proved, operator.floordiv) for each in (axis.extent, axis.stride))
            for axis in array.axes
        ]
        assert (of_host["row"] * nbytes, of_host["alignment"]) == (array.nbytes, array.align)
    equal = {**{name: expression(of) for name, of in promised.equal.items()}, **(of_hosts or {})}
    assert sizes == {
        name: {"least": least, "most": most} | ({"equal": equal[name]} if name in equal else {})
        for name, (least, most) in promised.bounds.items()
    }
    ctas, *others = promised.grid
    assert promised.value(ctas, proved, operator.floordiv) == evaluated(contract["grid"]["x"], values)
    assert others == [1, 1]
    return contract
