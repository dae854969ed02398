"""Structures by value, given as tuples of their members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptxgen.arguments import integer
from ptxgen.errors import LaunchError, shown
from ptxgen.interpreter import DeviceArena

_POINTER_BYTES: Final = 8


@dataclass(frozen=True)
class Structure:
    """A structure's members, laid out as C does: each at a multiple of its size, in order.

    An array is a pointer to its elements; an int is a C int, a float a C float, and a numpy scalar
    is of its own type; a tuple is a structure.
    """

    caller: str
    members: tuple[Any, ...]
    nbytes: int

    @property
    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """The arrays among the members, of inner structures too."""
        return [array for _, array in _arrays(self.caller, self.members)]

    def pack(self, arena: DeviceArena) -> bytes:
        """The bytes, with the device addresses of the arrays. Raises `LaunchError`."""
        data, _ = _packed(self.caller, self.members, arena)
        if len(data) != self.nbytes:
            raise LaunchError(
                f"{self.caller} must be a structure of {self.nbytes} bytes, got members of {len(data)} "
                "bytes, padding included; give numbers their types, as in numpy.int64(3)"
            )
        return data


def _arrays(name: str, members: tuple[Any, ...]) -> list[tuple[str, Any]]:
    arrays = []
    for n, member in enumerate(members):
        if isinstance(member, tuple):
            arrays += _arrays(f"{name}[{n}]", member)
        elif isinstance(member, np.ndarray):
            arrays.append((f"{name}[{n}]", member))
    return arrays


def _packed(name: str, members: tuple[Any, ...], arena: DeviceArena) -> tuple[bytes, int]:
    """The bytes of members and their alignment."""
    data, most = b"", 1
    for n, member in enumerate(members):
        part, align = _member(f"{name}[{n}]", member, arena)
        data += bytes(-len(data) % align) + part
        most = max(most, align)
    return data + bytes(-len(data) % most), most


def _member(name: str, member: Any, arena: DeviceArena) -> tuple[bytes, int]:
    if isinstance(member, tuple):
        return _packed(name, member, arena)
    if member is None:
        return bytes(_POINTER_BYTES), _POINTER_BYTES
    if isinstance(member, np.ndarray):
        address = arena.place(member, name=name.rpartition(": ")[2])
        return address.to_bytes(_POINTER_BYTES, "little"), _POINTER_BYTES
    if isinstance(member, float):
        member = np.float32(member)
    elif integer(member, -(1 << 31), (1 << 31) - 1) is not None and not isinstance(member, np.generic):
        member = np.int32(member)
    if not isinstance(member, np.generic) or member.dtype.hasobject:
        raise LaunchError(
            f"{name} must be an array, None for a null pointer, a number or a tuple, got {shown(member)}; "
            "numbers beyond 32 bits need their type, as in numpy.int64(3)"
        )
    return member.tobytes(), member.dtype.alignment
