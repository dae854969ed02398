"""What an executable needs of CUDA, read from its ELF file (System V ABI, "Object Files")."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ptxgen.errors import LaunchError

_MAGIC: Final = b"\x7fELF"
_64_BITS, _LITTLE = 2, 1
_DT_NULL, _DT_NEEDED = 0, 1
_FATBIN: Final = ".nv_fatbin"  # the section of device code


@dataclass(frozen=True, slots=True)
class Executable:
    """The shared libraries that a file needs, and whether it has device code."""

    needed: tuple[str, ...]
    has_device_code: bool


def executable(path: Path) -> Executable | None:
    """What the ELF file needs; None for another file, such as a script. Raises `LaunchError` for one
    that cannot be read, or that is for another kind of machine.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LaunchError(f"cannot read {path}: {error.strerror}") from error
    if not data.startswith(_MAGIC):
        return None
    try:
        if (data[4], data[5]) != (_64_BITS, _LITTLE):
            raise LaunchError(f"{path} must be a 64-bit little-endian program")
        sections = _sections(data)
        dynamic, strings = sections.get(".dynamic", b""), sections.get(".dynstr", b"")
        needed = []
        for tag, value in struct.iter_unpack("<qQ", dynamic[: len(dynamic) // 16 * 16]):
            if tag == _DT_NULL:
                break
            if tag == _DT_NEEDED:
                needed.append(_name(strings, value))
    except (struct.error, ValueError, IndexError) as error:
        raise LaunchError(f"{path} is no intact ELF file: {error}") from error
    return Executable(tuple(needed), _FATBIN in sections)


def _sections(data: bytes) -> dict[str, bytes]:
    """The contents of the sections by name."""
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    if not start:
        return {}
    headers = [struct.unpack_from("<IIQQQQ", data, start + n * size) for n in range(count)]
    _, _, _, _, offset, nbytes = headers[names_at]
    names = data[offset : offset + nbytes]
    return {_name(names, h[0]): data[h[4] : h[4] + h[5]] for h in headers}


def _name(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode(errors="replace")
