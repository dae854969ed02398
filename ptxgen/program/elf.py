"""Reads the CUDA libraries and device code of an executable from its ELF file (System V ABI, "Object
Files").
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ptxgen.errors import LaunchError

_MAGIC: Final = b"\x7fELF"
_64_BITS, _LITTLE = 2, 1
_DT_NULL, _DT_NEEDED = 0, 1
# Sections: what the dynamic linker reads, its strings, and device code.
_DYNAMIC, _STRINGS, _FATBIN = b".dynamic\0", b".dynstr\0", b".nv_fatbin\0"
# A damaged file costs no more memory and time than these: bytes of a library's name, and libraries.
_LONGEST_NAME, _MOST_NEEDED = 4096, 4096


@dataclass(frozen=True, slots=True)
class Executable:
    """The shared libraries that a file needs, and whether it has device code."""

    needed: tuple[str, ...]
    has_device_code: bool


def executable(path: Path) -> Executable | None:
    """The CUDA libraries and device code of an ELF file; None for another file, such as a script. Raises
    `LaunchError` for one that cannot be read, or that is for another kind of machine.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(data, path)
    except OSError as error:
        raise LaunchError(f"cannot read {path}: {error.strerror}") from error
    except LaunchError:
        raise
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise LaunchError(f"{path} is no intact ELF file: {error}") from error


def _read(data: mmap.mmap, path: Path) -> Executable:
    if (data[4], data[5]) != (_64_BITS, _LITTLE):
        raise LaunchError(f"{path} must be a 64-bit little-endian program")
    sections = _sections(data)
    dynamic, strings = (_content(data, sections.get(name, (0, 0))) for name in (_DYNAMIC, _STRINGS))
    needed: list[str] = []
    for tag, value in struct.iter_unpack("<qQ", dynamic[: len(dynamic) // 16 * 16]):
        if tag == _DT_NULL:
            break
        if tag == _DT_NEEDED:
            if len(needed) == _MOST_NEEDED:
                raise ValueError(f"it needs more than {_MOST_NEEDED} libraries")
            needed.append(
                strings[value : strings.index(b"\0", value, value + _LONGEST_NAME)].decode(errors="replace")
            )
    return Executable(tuple(needed), _FATBIN in sections)


def _sections(data: mmap.mmap) -> dict[bytes, tuple[int, int]]:
    """The offset and the size in bytes of each section that is read here, by its name with the final 0."""
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    if not start:
        return {}
    headers = [struct.unpack_from("<IIQQQQ", data, start + n * size) for n in range(count)]
    names = _content(data, headers[names_at][4:6])
    return {
        name: header[4:6]
        for header in headers
        for name in (_DYNAMIC, _STRINGS, _FATBIN)
        if names.startswith(name, header[0])
    }


def _content(data: mmap.mmap, part: tuple[int, int]) -> bytes:
    offset, nbytes = part
    if offset + nbytes > len(data):
        raise ValueError(f"a section ends at byte {offset + nbytes} of {len(data)}")
    return data[offset : offset + nbytes]
