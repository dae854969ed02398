"""`run`: a host program in another process, whose CUDA calls a `Device` in this process answers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ptxgen.errors import BackendError, LaunchError, PtxGenError, shown
from ptxgen.interpreter import Report
from ptxgen.interpreter.launch import MAX_INSTRUCTIONS
from ptxgen.program.device import Device, Reply
from ptxgen.program.elf import executable
from ptxgen.program.libraries import LINKER, RUNTIME, folder_of_libraries
from ptxgen.program.memory import CAPACITY, DeviceMemory
from ptxgen.target import target as find_target

# The messages of answers/wire.c. A request has the name of a call, its numbers and the count of bytes
# that follow; a reply has a status, its numbers and the count of bytes that follow.
_WORDS: Final = 12
_REQUEST: Final = struct.Struct(f"<32s{_WORDS}QQ")
_REPLY: Final = struct.Struct(f"<q{_WORDS}QQ")
_STOP: Final = -1
_SOCKET: Final = "PTXGEN_PROGRAM_SOCKET"
_ANY_RUNTIME: Final = "libcudart.so"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program's process.

    `code` is its exit code, or 128 plus the number of the signal that ended it. `stopped` is the reason why
    this process ended it, or empty: a call that is not answered, or device code that cannot be run. `reports`
    are the sanitizers' findings, each problem of a kernel once; `faults` are the errors that ended kernels;
    `launches` counts kernels that ran.
    """

    code: int
    stopped: str
    reports: tuple[Report, ...]
    faults: tuple[str, ...]
    launches: int


def run(
    command: Sequence[str],
    *,
    target: str | None = None,
    sanitize: bool = False,
    max_instructions: int = MAX_INSTRUCTIONS,
    tell: Callable[[str], None] = lambda _: None,
) -> Ended:
    """Run a program and its arguments. Its standard streams are those of this process.

    `target` is the device's, by default sm_80, or the newest that the program has PTX for if that is
    newer. With `sanitize`, all sanitizers watch each launch. A kernel that executes more than
    `max_instructions` in sequence, in one batch of CTAs, is stopped. `tell` is called, from another thread,
    with each fault of a kernel and each refused launch when it happens.

    Raises `LaunchError` for a program that cannot be run without a GPU, `UnsupportedTargetError` for an
    unknown target, `BackendError` without a C compiler or a temporary folder, and `CompileError` if the
    compiler fails.
    """
    asked = None if target is None else find_target(target)
    path, has_device_code = _checked(command)
    with _scratch() as scratch:
        libraries = folder_of_libraries(scratch, tell)
        device = Device(
            command[0],
            asked,
            sanitize,
            path.stat().st_mtime,
            DeviceMemory(scratch),
            tell,
            max_instructions=max_instructions,
        )
        with _Server(scratch / "socket", device) as server:
            environment = dict(os.environ)
            environment[_SOCKET] = str(scratch / "socket")
            known = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = f"{libraries}:{known}" if known else str(libraries)
            if not has_device_code:  # such as a program of Python, which compiles kernels when it runs
                loaded = environment.get("LD_PRELOAD")
                environment["LD_PRELOAD"] = ":".join(filter(None, (str(libraries / LINKER), loaded)))
            try:
                process = subprocess.Popen([str(path), *command[1:]], env=environment)
            except OSError as error:
                raise LaunchError(f"cannot run {command[0]}: {error.strerror}") from error
            try:
                status = process.wait()
            except BaseException:
                process.kill()
                process.wait()
                raise
        if server.failure is not None:
            raise server.failure
        code = status if status >= 0 else 128 - status
        return Ended(
            code, server.stopped, tuple(device.reports.values()), tuple(device.faults), device.launches
        )


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for the files of one run. Raises `BackendError` where none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="ptxgen-", ignore_cleanup_errors=True)
    except OSError as error:
        raise BackendError(
            f"no temporary folder can be made ({error.strerror or error}); set TMPDIR to a writable directory"
        ) from error
    with folder as name:
        yield Path(name)


def _checked(command: Sequence[str]) -> tuple[Path, bool]:
    """The program's path, once it is known that its calls can be answered, and whether it has device code.
    Raises `LaunchError`.
    """
    if not command or isinstance(command, str):
        raise LaunchError(
            f"run: the command must be a list of the program and its arguments, got {shown(command)}"
        )
    path = shutil.which(command[0])
    if path is None:
        why = "it is not executable" if Path(command[0]).is_file() else "there is no such program"
        raise LaunchError(f"cannot run {command[0]}: {why}")
    file = executable(Path(path))
    if file is not None:
        runtimes = [name for name in file.needed if name.startswith(_ANY_RUNTIME)]
        if not runtimes and file.has_device_code:
            raise LaunchError(
                f"{command[0]} has the CUDA runtime linked into it, so that its calls cannot be answered; "
                "link it with nvcc -cudart shared"
            )
        if runtimes and runtimes != [RUNTIME]:
            raise LaunchError(
                f"{command[0]} needs {runtimes[0]}, but {RUNTIME} is answered; use nvcc of CUDA 13"
            )
    return Path(path).absolute(), file is not None and file.has_device_code


class _Server:
    """Answers the connections to a socket, a thread for each; each process that the program starts connects
    separately.
    """

    def __init__(self, path: Path, device: Device) -> None:
        self.stopped = ""
        self.failure: Exception | None = None  # of this project, not of the program
        self._device = device
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.bind(str(path))
        except OSError as error:  # the system allows about 100 bytes
            self._socket.close()
            raise BackendError(
                f"no socket can be made at {path} ({error.strerror or error}); set TMPDIR to a shorter path"
            ) from error
        self._socket.listen()

    def __enter__(self) -> _Server:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(ConnectionError):
            while len(head := stream.read(_REQUEST.size)) == _REQUEST.size:
                name, *numbers, nbytes = _REQUEST.unpack(head)
                if nbytes > CAPACITY:  # a damaged size, which no memory here could have
                    self.stopped = self.stopped or f"a call brings {nbytes} bytes, more than the device has"
                    return
                data = stream.read(nbytes)
                if len(data) == nbytes:
                    connection.sendall(self._reply(name.rstrip(b"\0").decode(), numbers, data))

    def _reply(self, name: str, numbers: Sequence[int], data: bytes) -> bytes:
        with self._lock:
            try:
                return _packed(self._device.respond(name, numbers, data))
            except PtxGenError as error:
                self.stopped = self.stopped or str(error)
            except Exception as error:
                self.failure = error
            return _packed(Reply(_STOP))


def _packed(reply: Reply) -> bytes:
    padded = (*reply.numbers, *[0] * (_WORDS - len(reply.numbers)))
    return _REPLY.pack(reply.status, *padded, len(reply.data)) + reply.data
