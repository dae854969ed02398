"""`LastLaunch`: the last launch of a kernel on a GPU, which calls like it repeat."""

from __future__ import annotations

from ptxgen.arrays.streams import current_stream
from ptxgen.arrays.views import HOST, UNKNOWN_DEVICE
from ptxgen.kernels.built import BuiltFunction
from ptxgen.kernels.launch import Call, Extents, Read
from ptxgen.runtime.repeated_launch import RepeatedLaunch

_ALIGN = 16  # bytes, the largest alignment of an element type


class LastLaunch:
    """The last launch of a kernel on a GPU, for calls that differ from it in numbers and in addresses alone:
    of these only arrays and numbers are read, and arrays compared. `state` is the `Captured.state` of the
    kernel, and `aligned` the bytes to whose multiples its arrays are aligned.
    """

    def __init__(
        self, grid: Extents, call: Call, aligned: int, launch: RepeatedLaunch, state: object
    ) -> None:
        self._grid = grid
        self._launch = launch
        self._state = state
        self._layouts = [array[1:6] for array in call.views.values()]
        self._first = next(name for name, array in call.views.items() if array is call.first)
        self._misaligned = aligned - 1

    @classmethod
    def of(
        cls, grid: Extents, built: BuiltFunction, call: Call, launch: RepeatedLaunch | None, state: object
    ) -> LastLaunch | None:
        """The launch of a call; None if calls like it need more checks: for tensor maps, and where it is not
        known that all arrays are on the GPU of the launch.
        """
        first = call.first
        if launch is None or built.maps or first is None or first.device[1] == UNKNOWN_DEVICE:
            return None
        if first.device == HOST or any(array.device != first.device for array in call.views.values()):
            return None
        return cls(grid, call, max(_ALIGN, *built.uses.alignment.values(), 1), launch, state)

    def put(self, grid: Extents, of: Read, state: object, stream: int | None) -> bool:
        """Launch a call on a stream, None for the current one of its first array with elements; return False,
        with nothing done, if it is not like the last.
        """
        values, views, misfits = of
        if misfits or grid != self._grid or state is None or state is not self._state:
            return False
        for array, layout in zip(views.values(), self._layouts, strict=True):
            pointer = array[0]
            if array[1:6] != layout or not pointer or pointer & self._misaligned or array[9] is not None:
                return False
        self._launch.put(values, current_stream(views[self._first]) if stream is None else stream)
        return True
