"""A host in another language, in Python: it launches a kernel from its text and the JSON of its
contract, and knows nothing else of this project.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from command_line import Command

from ptxgen import interpreter

Array = np.ndarray[Any, Any]
TYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "i32": np.dtype(np.int32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "bool": np.dtype(np.bool_),
}


class Host:
    """One kernel. `text` and `contract` are the two files."""

    def __init__(self, text: str, contract: str) -> None:
        self.text = text
        self.contract = json.loads(contract)
        assert self.contract["schema"] == 2
        assert self.contract["sha256"] == hashlib.sha256(text.encode()).hexdigest()
        end = 0  # each parameter lies at the next multiple of its size, as the driver has it
        for parameter in self.contract["parameters"]:
            align = 64 if parameter["kind"] == "tensor_map" else parameter["size"]
            assert parameter["offset"] == -(-end // align) * align
            end = parameter["offset"] + parameter["size"]

    def empty(self, name: str, **sizes: int) -> Array:
        """A dense array of the type and shape that the contract says, of what is no number."""
        array = self.array_of(name)
        shape = [evaluated(dim["extent"], sizes) for dim in array["dims"]]
        dtype = TYPES[array["type"]]
        if array["row"] > 1:
            shape.append(array["row"])
        return np.full(shape, 0 if dtype.kind == "i" else np.nan, dtype)

    def launch(self, arrays: Mapping[str, Array], **numbers: float) -> None:
        """Launch it on arrays, by name, each with the dimensions of the contract, and numbers that
        no array has.
        """
        assert set(arrays) == {array["name"] for array in self.contract["arrays"]}
        sizes = self._sizes(arrays, numbers)
        values: dict[str, Any] = {**numbers, **sizes, **arrays}
        for array in self.contract["arrays"]:
            values |= strides(array, arrays[array["name"]], sizes)
        missing = [p["name"] for p in self.contract["parameters"] if p["name"] not in values]
        assert not missing, missing
        interpreter.run(
            self.text,
            self.contract["entry"],
            grid=self._ctas(sizes),
            block=self.contract["block"],
            args=[values[p["name"]] for p in self.contract["parameters"]],
            dynamic_smem=self.contract["dynamic_shared_bytes"],
            sanitize=True,
        )

    def array_of(self, name: str) -> dict[str, Any]:
        """What the contract says of an array."""
        (result,) = [array for array in self.contract["arrays"] if array["name"] == name]
        return dict(result)

    def _sizes(self, arrays: Mapping[str, Array], numbers: Mapping[str, float]) -> dict[str, int]:
        """All sizes: those of the arrays, those given, and those that follow; within bounds."""
        named = self.contract["sizes"]
        sizes = {name: int(n) for name, n in numbers.items() if name in named}
        for array in self.contract["arrays"]:
            for dim, length in zip(array["dims"], arrays[array["name"]].shape, strict=False):
                if isinstance(dim["extent"], str):
                    assert sizes.setdefault(dim["extent"], length) == length, dim
        for name, size in named.items():
            if "equal" in size:
                value = evaluated(size["equal"], sizes)
                assert sizes.setdefault(name, value) == value, name
        for name, size in named.items():
            assert size["least"] <= sizes[name] <= size["most"], name
        for array in self.contract["arrays"]:
            arguments = arrays[array["name"]]
            extents = [evaluated(dim["extent"], sizes) for dim in array["dims"]]
            row = list(arguments.shape[len(extents) :])
            assert (list(arguments.shape[: len(extents)]), math.prod(row)) == (extents, array["row"])
            assert arguments.dtype == TYPES[array["type"]]
            assert arguments.ctypes.data % array["alignment"] == 0
        return sizes

    def _ctas(self, sizes: Mapping[str, int]) -> list[int]:
        return [evaluated(self.contract["grid"][axis], sizes) for axis in "xyz"]


def strides(array: dict[str, Any], given: Array, sizes: Mapping[str, int]) -> dict[str, int]:
    """The strides that are parameters; that of a dense array must be as the contract says."""
    result = {}
    for dim, nbytes in zip(array["dims"], given.strides, strict=False):
        stride, rest = divmod(nbytes, given.itemsize)
        assert rest == 0
        if dim["stride"] == f"{array['name']}_{dim['name']}_stride":
            result[dim["stride"]] = stride
        else:
            assert stride == evaluated(dim["stride"], sizes)
        assert nbytes % array["alignment"] == 0 or given.shape[array["dims"].index(dim)] == 1
    return result


def evaluated(of: Any, sizes: Mapping[str, int]) -> int:
    """The value of an expression: a number, a name, or an operation on expressions."""
    if isinstance(of, int):
        return of
    if isinstance(of, str):
        return sizes[of]
    ((how, parts),) = of.items()
    values = [evaluated(part, sizes) for part in parts]
    if how in ("times", "plus"):
        return math.prod(values) if how == "times" else sum(values)
    above, below = values
    assert how == "ceil_div" or above % below == 0
    return -(-above // below)


def emitted_host(call: Command, *argv: str) -> Host:
    """The host of the kernel that `ptxgen emit` emits for these options."""
    return Host(call.quiet(*argv), call.quiet(*argv, "--json"))
