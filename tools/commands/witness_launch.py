"""One launch on the GPU in a separate process, which may crash: `witness_launch.py FOLDER`.

`store` writes a launch to a folder, a process runs it from there, and `fetch` reads the results
back into the arrays. An array is stored with the whole memory of which it is a view.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from numpy.typing import NDArray

from ptxgen.commands.parts.exits import fail
from ptxgen.errors import PtxGenError
from ptxgen.ir import Kernel
from ptxgen.runtime.cuda import CudaBackend, cuda_backend
from ptxgen.runtime.plan import LaunchPlan, ParamSlot, param_slots

OK, FAILED, USAGE = range(3)
ORDINAL: Final = 0  # the GPU

_JOB: Final = "job.json"
_PROGRAM: Final = "program"
Array = NDArray[Any]


def store(
    folder: Path,
    program: bytes,
    kernel: Kernel,
    *,
    grid: int,
    block: int,
    args: Sequence[Any],
    dynamic_smem: int,
) -> list[Array]:
    """Write a launch of `program`, a cubin or PTX, into `folder`, for the process to read.

    Returns the base arrays of the arrays in `args`, each once, for `fetch`. Raises OSError.
    """
    memory: list[Array] = []
    values = [_value(argument, memory) for argument in args]
    for number, whole in enumerate(memory):
        (folder / f"memory{number}").write_bytes(whole.tobytes())
    (folder / _PROGRAM).write_bytes(program)
    job = {
        "entry": kernel.name,
        "grid": grid,
        "block": block,
        "dynamic_smem": dynamic_smem,
        "slots": param_slots(kernel.params),
        "values": values,
    }
    (folder / _JOB).write_text(json.dumps(job), encoding="utf-8")
    return memory


def _value(argument: Any, memory: list[Array]) -> Any:
    """A number, or for an array the index of its base array in `memory` and its byte offset."""
    if not isinstance(argument, np.ndarray):
        return argument.item() if isinstance(argument, np.generic) else argument
    whole = argument
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    number = next((n for n, known in enumerate(memory) if known is whole), len(memory))
    if number == len(memory):
        memory.append(whole)
    return {"memory": number, "offset": argument.ctypes.data - whole.ctypes.data}


def fetch(folder: Path, memory: Sequence[Array]) -> None:
    """Copy the results of the launch in `folder` into the base arrays that `store` returned. Raises
    OSError if there is no result, as after a launch that failed.
    """
    for number, whole in enumerate(memory):
        values = np.fromfile(folder / f"result{number}", whole.dtype)
        if whole.flags.writeable:
            whole[...] = values.reshape(whole.shape)


def launch(folder: Path, backend: CudaBackend) -> None:
    """Run the launch that `store` has written to `folder`, and write the results there.

    Raises OSError, and `PtxGenError` for errors of the GPU or its driver.
    """
    job = json.loads((folder / _JOB).read_text(encoding="utf-8"))
    program, entry, shared = (folder / _PROGRAM).read_bytes(), job["entry"], job["dynamic_smem"]
    kernel = backend.load(program, entry, shared, ORDINAL)
    files = [file for n in range(len(job["values"])) if (file := folder / f"memory{n}").exists()]
    held = [np.fromfile(path, np.uint8) for path in files]
    addresses = [backend.allocate(max(h.nbytes, 1), ordinal=ORDINAL) for h in held]
    for host, address in zip(held, addresses, strict=True):
        backend.copy_to_device(address, host.ctypes.data, host.nbytes, ordinal=ORDINAL)
    values = tuple(addresses[v["memory"]] + v["offset"] if isinstance(v, dict) else v for v in job["values"])
    slots = tuple(ParamSlot(*slot) for slot in job["slots"])
    plan = LaunchPlan(entry, (job["grid"], 1, 1), (job["block"], 1, 1), shared, slots, values)
    backend.launch(kernel, plan)
    backend.synchronize(ordinal=ORDINAL)
    for number, (host, address) in enumerate(zip(held, addresses, strict=True)):
        backend.copy_to_host(host.ctypes.data, address, host.nbytes, ordinal=ORDINAL)
        backend.synchronize(ordinal=ORDINAL)
        host.tofile(folder / f"result{number}")
        backend.free(address, ordinal=ORDINAL)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the launch in the named folder; 0 if it completed, 1 if not, 2 for wrong usage."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: witness_launch.py FOLDER  (for tools/witness.py)", file=sys.stderr)
        return USAGE
    try:
        launch(Path(arguments[0]), cuda_backend())
    except (PtxGenError, OSError) as error:
        return fail("witness_launch.py", FAILED, error)
    return OK


if __name__ == "__main__":
    sys.exit(main())
