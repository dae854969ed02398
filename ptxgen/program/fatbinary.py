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
_ENTRY_BYTES: Final = 64  # of an entry's header, at least
_FLAGS_AT: Final = 40
_WHOLE_AT: Final = 56  # bytes when decompressed
_PTX: Final = 1
_OLD_COMPRESSION, _LZ4, _ZSTD = 0x1000, 0x2000, 0x8000
_ADVICE: Final = "or compile the program with nvcc -Xfatbin=-compress-mode=none"
_MIN_MATCH: Final = 4  # of LZ4
_MOST_BYTES: Final = 256 << 20  # of a text, so that a damaged size costs no more memory


@dataclass(frozen=True, slots=True)
class Ptx:
    """The PTX for one target, whose number is `sm`; `data` may be compressed."""

    sm: int
    flags: int
    data: bytes
    whole: int

    def text(self) -> str:
        """The PTX text, decompressed. Raises `BackendError` if there is no decompressor for it, and
        `LaunchError` if it is damaged.
        """
        data = self.data
        if self.flags & (_ZSTD | _LZ4 | _OLD_COMPRESSION) and self.whole > _MOST_BYTES:
            raise LaunchError(
                f"PTX in a fat binary must have at most {_MOST_BYTES} bytes, but this one is said to have "
                f"{self.whole} when decompressed"
            )
        if self.flags & _ZSTD:
            data = _zstd(data, self.whole)
        elif self.flags & _LZ4:
            data = lz4(data, self.whole)
        elif self.flags & _OLD_COMPRESSION:
            raise BackendError(
                f"this PTX is compressed in a way of old compilers; use CUDA 12 or later {_ADVICE}"
            )
        return data.rstrip(b"\0").decode(errors="replace")


def entries(container: bytes) -> Iterator[Ptx]:
    """The PTX entries of a container. Raises `LaunchError` for bytes that are no container."""
    if len(container) < _HEADER.size:
        raise LaunchError(f"a fat binary is cut short: it has {len(container)} bytes")
    magic, _, header, nbytes = _HEADER.unpack_from(container)
    if magic != _MAGIC:
        raise LaunchError(f"a fat binary must begin with {_MAGIC:#x}, got {magic:#x}")
    at, end = header, header + nbytes
    if header < _HEADER.size or end > len(container):
        raise LaunchError(
            f"a fat binary is damaged: its header says that it has {header} + {nbytes} bytes, but there are "
            f"{len(container)}"
        )
    while at < end:
        if end - at < _ENTRY_BYTES:
            raise LaunchError(f"a fat binary is cut short: its entry at byte {at} has {end - at} bytes")
        kind, _, head, nbytes, compressed, _, _, _, sm = _ENTRY.unpack_from(container, at)
        begin = at + head
        # `compressed` bytes are padded to `nbytes`.
        if head < _ENTRY_BYTES or begin + nbytes > end or compressed > nbytes:
            raise LaunchError(
                f"a fat binary is damaged: its entry at byte {at} says that it has {head} + {nbytes} bytes, "
                f"of which {compressed} are compressed, but there are {end - at}"
            )
        if kind == _PTX:
            (flags,) = struct.unpack_from("<Q", container, at + _FLAGS_AT)
            whole = struct.unpack_from("<Q", container, at + _WHOLE_AT)[0] if compressed else nbytes
            yield Ptx(sm, flags, container[begin : begin + (compressed or nbytes)], whole)
        at = begin + nbytes


def _zstd(data: bytes, whole: int) -> bytes:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise BackendError(
            "the program's PTX is compressed with zstd; install a decompressor (pip install zstandard) "
            f"{_ADVICE}"
        ) from error
    try:
        # The decompressor believes a size in the frame before the one that it is given.
        content = zstandard.frame_content_size(data)
        if content > whole:
            raise LaunchError(f"PTX compressed with zstd must have {whole} bytes, its frame says {content}")
        text: bytes = zstandard.ZstdDecompressor().decompress(data, max_output_size=whole)
    except zstandard.ZstdError as error:
        raise LaunchError(f"PTX compressed with zstd is damaged: {error}") from error
    return text


def lz4(data: bytes, whole: int) -> bytes:
    """The `whole` bytes in an LZ4 block (lz4_Block_format.md). Raises `LaunchError` for other bytes."""
    out = bytearray()
    at = 0
    try:
        while True:
            token, at = data[at], at + 1
            count, at = _length(data, at, token >> 4)
            if at + count > len(data):
                raise LaunchError("an LZ4 block is cut short")
            out += data[at : at + count]
            at += count
            if at == len(data):
                break
            back = data[at] | data[at + 1] << 8
            count, at = _length(data, at + 2, token & 15)
            count += _MIN_MATCH
            if not 0 < back <= len(out):
                raise LaunchError(f"an LZ4 block refers {back} bytes back, but has {len(out)}")
            if len(out) + count > whole:
                raise LaunchError(f"an LZ4 block must have {whole} bytes when decompressed, but has more")
            part = bytes(out[-back:])  # what is copied repeats it, if it is longer
            out += (part * -(-count // back))[:count]
    except IndexError:
        raise LaunchError("an LZ4 block is cut short") from None
    if len(out) != whole:
        raise LaunchError(f"an LZ4 block must have {whole} bytes when decompressed, but has {len(out)}")
    return bytes(out)


def _length(data: bytes, at: int, first: int) -> tuple[int, int]:
    """A length that continues in further bytes if it begins with 15, and the offset after it."""
    if first == 15:
        more = 255
        while more == 255:
            more, at = data[at], at + 1
            first += more
    return first, at
