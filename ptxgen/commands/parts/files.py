"""Writes the files of a command: all of them or none, each in one step; errors name the file and the
reason.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ptxgen.commands.parts.exits import FAILED, StopError
from ptxgen.commands.parts.standard_output import drop_standard_output

STDOUT: Final = "-"  # standard output as the name of a file


class FileError(StopError):
    """A file cannot be read or written; the message names it."""

    def __init__(self, message: str) -> None:
        super().__init__(FAILED, message)


def check_writable(paths: Sequence[Path]) -> None:
    """Raise `FileError` for a file that cannot be written; checked before the work."""
    for path in paths:
        folder = Path(os.path.realpath(path)).parent
        if path.is_dir():
            raise FileError(f"cannot write {path}: it is a directory")
        if _is_special(path):
            if not os.access(path, os.W_OK):
                raise FileError(f"cannot write {path}: Permission denied")
        elif not folder.is_dir() or not os.access(folder, os.W_OK):
            raise FileError(f"cannot write {path}: {folder} is no writable directory")


def why_not_writable(path: Path) -> str:
    """Why `write_file` could not write a file at `path`; empty if it can. Checked before long work, for which
    it makes the folder.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        return f"{path.parent} is no folder"
    except OSError as error:
        return error.strerror or str(error)
    if path.is_dir():
        return "it is a folder"
    return "" if os.access(path.parent, os.W_OK) else f"{path.parent} is not writable"


def write_file(path: Path, content: str | bytes) -> None:
    """Write one file, as `write_files` does; text as UTF-8."""
    write_files({path: content.encode() if isinstance(content, str) else content})


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files: first all of them as temporary files, then by renames, so that readers see the old bytes
    of a file or the new ones, and a disk that is full leaves all as they were. Modes are kept. Pipes and
    devices are written to, not replaced.

    Raises `FileError` with the name of the file.
    """
    temporaries: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            with _naming(path):
                if not _is_special(path):
                    temporaries[path] = _temporary(Path(os.path.realpath(path)), data)
        for path, data in contents.items():
            with _naming(path):
                if path in temporaries:
                    temporaries[path].replace(os.path.realpath(path))
                else:
                    path.write_bytes(data)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)


def deliver(text: str, output: str) -> None:
    """Write the text to standard output, or in one step to a file. Raises `StopError`."""
    data = text.encode()
    if output != STDOUT:
        write_file(Path(output), data)
        return
    if sys.stdout is None:
        raise StopError(FAILED, "standard output is closed; use -o FILE")
    try:
        # Bytes, because the text layer could change line ends or the encoding. Without buffering
        # (python -u), one write may take only a part.
        rest = memoryview(data)
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.flush()
    except BrokenPipeError:
        drop_standard_output()
    except OSError as error:
        drop_standard_output()
        message = f"cannot write standard output: {error.strerror}"
        raise StopError(FAILED, message) from error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A context that raises `FileError` with the name of `path` for an `OSError`, which may have another name
    or none.
    """
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def _is_special(path: Path) -> bool:
    """Whether a path is that of a pipe, a device or a folder, which no file replaces."""
    return path.exists() and not path.is_file()


def _temporary(path: Path, data: bytes) -> Path:
    """A new file in the folder of `path`, with the mode that `path` has; nothing is left of one that cannot
    be written.
    """
    temporary = path.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename, or a power cut could leave an empty file
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
