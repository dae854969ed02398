"""Whether the results of a candidate are those that its author expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ptxgen.arrays.views import host_array
from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.kernels.launch import Call
from ptxgen.records import dataclass


@dataclass(frozen=True)
class Expected:
    """The results of a launch, by the names of arrays, and how far an element x may be from its expected
    value y: |x - y| <= atol + rtol |y|.
    """

    arrays: Mapping[str, Any]
    rtol: float
    atol: float

    @classmethod
    def of(cls, caller: str, arrays: Any, rtol: float, atol: float, call: Call) -> Expected:
        """The expected results of a call. Raises `LaunchError` for a name that is no array of it, and for
        another shape.
        """
        if arrays is None:
            return cls({}, rtol, atol)
        if not isinstance(arrays, Mapping):
            raise LaunchError(f"{caller}: expected must be a dict of arrays by name, got {shown(arrays)}")
        wanted = {}
        for name, values in arrays.items():
            if name not in call.views:
                hint = did_you_mean(str(name), call.views)
                raise LaunchError(f"{caller}: expected has {name!r}, which is no array of the kernel{hint}")
            wanted[name] = np.asarray(values)
            if wanted[name].shape != tuple(call.views[name].shape):
                raise LaunchError(
                    f"{caller}: expected[{name!r}] must have shape {list(call.views[name].shape)}, got "
                    f"{list(wanted[name].shape)}"
                )
        return cls(wanted, rtol, atol)

    def problem(self, call: Call) -> str:
        """The first difference of the arrays of a call on the host, as text; empty if there is none."""
        for name, want in self.arrays.items():
            got = host_array(call.views[name])
            exact = got.astype(np.float64), want.astype(np.float64)
            wrong = ~np.isclose(*exact, rtol=self.rtol, atol=self.atol, equal_nan=True)
            if wrong.any():
                at = tuple(map(int, np.unravel_index(int(np.argmax(wrong)), wrong.shape)))
                return (
                    f"wrong result: {name}[{', '.join(map(str, at))}] is {exact[0][at]:.6g}, expected "
                    f"{exact[1][at]:.6g}; {int(wrong.sum())} of {wrong.size} elements differ by more than "
                    f"rtol={self.rtol:g}, atol={self.atol:g} allow"
                )
        return ""
