"""Files that no other user can have written: what is read from a cache is run.

Everything that this project keeps in the cache's directory, and reads back to run it, passes
`private_folder` for its folder and `open_private` for the file itself.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

PRIVATE_MODE = 0o600  # of a file


class NotPrivateError(Exception):
    """Another user could have written a file or a folder; the message says why."""


def refusal(directory: Path) -> str | None:
    """Why another user could write entries of `directory`; None if no other user can, or if it is absent."""
    if not directory.is_absolute():
        return f"{directory} is not an absolute path"
    try:
        link, status = os.lstat(directory), os.stat(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{directory} cannot be examined ({error.strerror or error})"
    if not stat.S_ISDIR(status.st_mode):
        return f"{directory} is not a directory"
    if sys.platform == "win32":  # Windows has no owners and modes of this form
        return None
    me = os.geteuid()
    if status.st_uid != me:
        return f"{directory} belongs to user {status.st_uid}, not to this process's user {me}"
    if link.st_uid not in (me, 0):  # only this user and root may make the link
        return f"{directory} is a link made by user {link.st_uid}, not by this process's user {me}"
    if (mode := stat.S_IMODE(status.st_mode)) & 0o022:
        return f"{directory} is writable by others (mode {mode:o}, wanted 700)"
    return None


def private_folder(cache: Path, *names: str) -> Path:
    """The folder `cache/names[0]/…`, which is made if it is absent; the cache's directory and each folder
    on the way are checked.

    Raises `NotPrivateError` if others could write to one of them, and OSError if one cannot be made.
    """
    folder = cache
    for name in (None, *names):
        folder = cache if name is None else folder / name
        if (problem := refusal(folder)) is None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = refusal(folder)
        if problem:
            raise NotPrivateError(problem)
    return folder


def open_private(path: Path) -> BinaryIO:
    """Open a file for reading. Raises `NotPrivateError` if another user could have written it, and OSError
    if it cannot be opened.
    """
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivateError("is a symbolic link") from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotPrivateError("is not a regular file")
    if sys.platform != "win32" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        os.close(descriptor)
        raise NotPrivateError("belongs to or is writable by another user")
    return os.fdopen(descriptor, "rb")
