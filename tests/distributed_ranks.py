"""Processes that are the ranks of a gloo group, for tests: they run functions of `distributed_cases`, or of
another module if the name says it, as in "distributed_calls.refused".
"""

from __future__ import annotations

import datetime
import importlib
import multiprocessing
import os
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT = datetime.timedelta(seconds=60)
_STARTED = 120  # seconds until a rank answers, on a machine with other work


class Ranks:
    """`world` processes with a process group. They are forked from one that has imported all, so that a
    group starts in a second.
    """

    def __init__(self, world: int, timeout: datetime.timedelta = TIMEOUT) -> None:
        context = multiprocessing.get_context("forkserver")
        # The first process to fork imports by this alone.
        paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
        context.set_forkserver_preload(["torch", "flash.distributed", "distributed_cases"])
        self._folder = tempfile.TemporaryDirectory()
        meeting = str(Path(self._folder.name) / "meeting")
        self.processes, self._pipes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, rank, world, meeting, timeout), daemon=True
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(ours)

    def run(self, name: str, *args: Any, **options: Any) -> list[Any]:
        """What the function returns on each rank. Raises AssertionError with the first traceback."""
        self.start(name, *args, **options)
        said = [self._answer(rank) for rank in range(len(self._pipes))]
        return [_value(rank, *answer) for rank, answer in enumerate(said)]

    def start(self, name: str, *args: Any, **options: Any) -> None:
        """Let all ranks begin a function."""
        for pipe in self._pipes:
            pipe.send((name, args, options))

    def result(self, rank: int) -> Any:
        """What a function that was started returns on a rank."""
        return _value(rank, *self._answer(rank))

    def _answer(self, rank: int) -> tuple[str, Any]:
        assert self._pipes[rank].poll(_STARTED), f"rank {rank} does not answer"
        answer: tuple[str, Any] = self._pipes[rank].recv()
        return answer

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _value(rank: int, said: str, value: Any) -> Any:
    assert said == "returned", f"rank {rank}:\n{value}"
    return value


def _serve(pipe: Connection, rank: int, world: int, meeting: str, timeout: datetime.timedelta) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timeout
    )
    while True:
        name, args, options = pipe.recv()
        try:
            module, _, function = name.rpartition(".")
            cases = importlib.import_module(module or "distributed_cases")
            pipe.send(("returned", getattr(cases, function)(*args, **options)))
        except Exception:
            pipe.send(("raised", traceback.format_exc()))
