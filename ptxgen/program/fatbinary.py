"""The PTX in a fat binary, the container in which nvcc puts device code for several targets.

NVIDIA has not published the format; the offsets are those that nvcc 13 writes, and the tests compare
with its own `-ptx`.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ptxgen.errors import BackendError, LaunchError

_MAGIC: Final = 0xBA55ED50
_HEADER: Final = struct.Struct("<IHHQ")  # magic, version, bytes of the header, bytes after it
# Kind, version, bytes of the header and of the contents; bytes that are compressed; PTX version;
# number of the target.
_ENTRY: Final = struct.Struct("<HHIQIIHHI")
_FLAGS_AT: Final = 40
_WHOLE_AT: Final = 56  # bytes when decompressed
_PTX: Final = 1
_OLD_COMPRESSION, _LZ4, _ZSTD = 0x1000, 0x2000, 0x8000
_ADVICE: Final = "or compile the program with nvcc -Xfatbin=-compress-mode=none"
_MIN_MATCH: Final = 4  # of LZ4


@dataclass(frozen=True, slots=True)
class Ptx:
    """The PTX for one target, whose number is `sm`; `data` may be compressed."""

    sm: int
    flags: int
    data: bytes
    whole: int

    def text(self) -> str:
        """The text. Raises `BackendError` if there is no decompressor for it."""
        data = self.data
        if self.flags & _ZSTD:
            data = _zstd(data, self.whole)
        elif self.flags & _LZ4:
            data = lz4(data)
        elif self.flags & _OLD_COMPRESSION:
            raise BackendError(
                f"this PTX is compressed in a way of old compilers; use CUDA 12 or later {_ADVICE}"
            )
        return data.rstrip(b"\0").decode(errors="replace")


def entries(container: bytes) -> Iterator[Ptx]:
    """The PTX entries of a container. Raises `LaunchError` for bytes that are none."""
    try:
        magic, _, header, nbytes = _HEADER.unpack_from(container)
        if magic != _MAGIC:
            raise LaunchError(f"a fat binary must begin with {_MAGIC:#x}, got {magic:#x}")
        at, end = header, header + nbytes
        while at < end:
            kind, _, head, nbytes, compressed, _, _, _, sm = _ENTRY.unpack_from(container, at)
            if kind == _PTX:
                (flags,) = struct.unpack_from("<Q", container, at + _FLAGS_AT)
                whole = struct.unpack_from("<Q", container, at + _WHOLE_AT)[0] if compressed else nbytes
                begin = at + head
                yield Ptx(sm, flags, container[begin : begin + (compressed or nbytes)], whole)
            at += head + nbytes
    except struct.error as error:
        raise LaunchError(f"a fat binary is cut short: {error}") from error


def _zstd(data: bytes, whole: int) -> bytes:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise BackendError(
            "the program's PTX is compressed with zstd; install a decompressor (pip install zstandard) "
            f"{_ADVICE}"
        ) from error
    found: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=whole)
    return found


def lz4(data: bytes) -> bytes:
    """The contents of an LZ4 block (lz4_Block_format.md). Raises `LaunchError` for other bytes."""
    out = bytearray()
    at = 0
    try:
        while True:
            token, at = data[at], at + 1
            count, at = _length(data, at, token >> 4)
            out += data[at : at + count]
            at += count
            if at >= len(data):
                return bytes(out)
            back = data[at] | data[at + 1] << 8
            count, at = _length(data, at + 2, token & 15)
            start = len(out) - back
            if not 0 < back <= len(out):
                raise LaunchError(f"an LZ4 block refers {back} bytes back, but has {len(out)}")
            for n in range(start, start + count + _MIN_MATCH):  # may overlap with what it writes
                out.append(out[n])
    except IndexError:
        raise LaunchError("an LZ4 block is cut short") from None


def _length(data: bytes, at: int, first: int) -> tuple[int, int]:
    """A length that continues in further bytes if it begins with 15, and the place after it."""
    if first == 15:
        more = 255
        while more == 255:
            more, at = data[at], at + 1
            first += more
    return first, at
