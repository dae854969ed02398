"""Which tests enter which blocks of the analysers, and how long they take: recorded once and kept in a file;
and the tests chosen by that record.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tools.analyses.source import MODULE, ROOT, Mutant, files, source_of

SCHEMA: Final = 1
_SLOWEST_S: Final = 20.0  # tests that take longer judge nothing
_LEAST_S: Final = 0.003  # what pytest itself takes for a test
# Not -m, by which the classes of what is sent would be those of a module named __main__.
_START: Final = "import sys; from tools.analyses.worker import main; main(sys.argv[1:])"

# Tests that judge every mutant; the slower ones in LAST judge what these do not notice.
FIRST: Final = (
    "tests/check",
    "tests/interpreter",
    "tests/isa",
    "tests/vectors",
    "tests/test_parse.py",
    "tests/test_parse_modules.py",
    "tests/test_parse_strict.py",
)
LAST: Final = (
    "tests/flash/test_kernel.py",
    "tests/flash/contract/test_forward.py",
    "tests/flash/kernels/test_mma_forward.py",
    "tests/flash/decode/test_cache_kernels.py",
    "tests/flash/cache/test_faults.py",
)


class Judges(NamedTuple):
    """The tests that judge: those with the `marks`, a pattern of pytest, in files and folders."""

    paths: tuple[str, ...]
    marks: str


@contextmanager
def worker(what: str, judges: Judges) -> Iterator[Connection]:
    """A context with a process of `tools.analyses.worker`; its value is the connection to it."""
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryDirectory(prefix="ptxgen-mutants-") as folder:
        handle = theirs.detach()
        command = [sys.executable, "-c", _START, what, str(handle)]
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", PYTHONHASHSEED="0")
        process = subprocess.Popen(
            [*command, f"{folder}/tests", judges.marks, *judges.paths],
            pass_fds=[handle],
            cwd=ROOT,
            env=environment,
        )
        os.close(handle)
        try:
            with Connection(ours.detach()) as connection:
                yield connection
                connection.send(None)
            process.wait(60)
        except (EOFError, BrokenPipeError):
            log = Path(folder, f"{what}.log")
            words = log.read_text()[-2000:] if log.exists() else ""
            raise RuntimeError(f"the process of the tests has ended: {words}") from None
        finally:
            process.kill()
            process.wait()


def _hash(path: str) -> str:
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()[:16]


def file_of(test: str) -> str:
    """The path of the file that a test is defined in."""
    return test.partition("::")[0]


class TestMap:
    """A recording: the tests that enter each block, with their seconds."""

    __test__ = False  # for pytest, which looks at names

    def __init__(self) -> None:
        self.tests: dict[str, float] = {}  # those that pass
        self.hashes: dict[str, str] = {}  # of the files of tests
        self.functions: dict[str, str] = {}  # by file:function
        self.at_import: set[str] = set()  # blocks
        self.enters: dict[str, set[str]] = {}  # tests by block

    # ------------------------------------------------------------------------------ in a file

    @classmethod
    def load(cls, path: Path) -> TestMap:
        """The map in a file. Raises `OSError` or `ValueError` for a file that holds none."""
        test_map = cls()
        with np.load(path) as data:
            head: Any = json.loads(str(data["head"]))
            if head.get("schema") != SCHEMA:
                raise ValueError(f"it is no map of schema {SCHEMA}")
            names, blocks = list(head["tests"]), head["blocks"]
            bits = np.unpackbits(data["bits"], axis=1, count=len(names)).astype(bool)
        test_map.tests = head["tests"]
        test_map.hashes, test_map.functions = head["hashes"], head["functions"]
        test_map.at_import = set(head["at_import"])
        for row, block in enumerate(blocks):
            test_map.enters[block] = {names[n] for n in np.flatnonzero(bits[row])}
        return test_map

    def save(self, path: Path) -> None:
        """Write the recording to a file, atomically."""
        index = {test: n for n, test in enumerate(self.tests)}
        bits = np.zeros((len(self.enters), len(index)), np.bool_)
        for row, tests in enumerate(self.enters.values()):
            bits[row, [index[test] for test in tests]] = True
        head = {
            "schema": SCHEMA,
            "tests": self.tests,
            "hashes": self.hashes,
            "functions": self.functions,
            "at_import": sorted(self.at_import),
            "blocks": list(self.enters),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{os.getpid()}.npz")
        np.savez_compressed(new, head=np.array(json.dumps(head)), bits=np.packbits(bits, axis=1))
        os.replace(new, path)

    # ------------------------------------------------------------------------------- recording

    def stale(self, paths: Sequence[str]) -> list[str]:
        """The test files whose present text is not recorded; records of files that no longer exist are
        removed.
        """
        for file in [file for file in self.hashes if not (ROOT / file).exists()]:
            self._forget(file)
            del self.hashes[file]
        return [file for file in test_files(paths) if self.hashes.get(file) != _hash(file)]

    def record(self, stale: Judges, say: Any) -> Iterator[None]:
        """Record the tests of some files, and stop for a while after each file."""
        if not stale.paths:
            return
        with worker("record", stale) as connection:
            names, hits = connection.recv()
            self.at_import |= set(_blocks(hits))
            if not self.functions:
                self.functions = {
                    f"{f}:{name}": source_of(f).function_hash(name)
                    for f in files()
                    for name in source_of(f).functions
                }
            for file in stale.paths:
                say(file)
                self._forget(file)
                mine = [name for name in names if file_of(name) == file]
                text = _hash(file)  # the collected text: a file that is edited meanwhile is recorded again
                connection.send(mine)
                for message in connection.recv():
                    if message[0] == "failed":
                        raise RuntimeError(f"the tests of {file} cannot be recorded: {message[1]}")
                    test, seconds, verdict, entered = message
                    if verdict != "passed":
                        continue
                    self.tests[test] = round(seconds, 4)
                    for block in _blocks(entered):
                        self.enters.setdefault(block, set()).add(test)
                self.hashes[file] = text
                yield

    def _forget(self, file: str) -> None:
        gone = {test for test in self.tests if file_of(test) == file}
        self.tests = {test: s for test, s in self.tests.items() if test not in gone}
        for tests in self.enters.values():
            tests -= gone

    # --------------------------------------------------------------------------------- choosing

    def runs_at_import(self, mutant: Mutant) -> bool:
        """Whether the changed code runs when its module is imported, before any test."""
        return mutant.function == MODULE or _name(mutant) in self.at_import

    def chosen(
        self, mutant: Mutant, budget_s: float, within: Collection[str] = ()
    ) -> list[tuple[str, float]]:
        """The tests that judge a mutant, in order, with their seconds, of all files or of those `within`; the
        first ones and the last ones take no more than `budget_s` seconds each in all.
        """
        tests = {test for test in self._that_enter(mutant) if not within or file_of(test) in within}
        cost = _costs({test: self.tests[test] for test in tests if test in self.tests})
        quickest: list[tuple[str, float]] = []
        for last in (False, True):
            left = budget_s
            for test in sorted(cost, key=lambda test: (cost[test], test)):
                seconds = self.tests[test]
                if test.startswith(LAST) is last and seconds <= min(_SLOWEST_S, left):
                    left -= max(seconds, _LEAST_S)
                    quickest.append((test, seconds))
        return quickest

    def _that_enter(self, mutant: Mutant) -> set[str]:
        """The tests that enter the block; if the function has changed since, those of the file."""
        known = self.functions.get(f"{mutant.file}:{mutant.function}")
        now = source_of(mutant.file).function_hash(mutant.function)
        if not self.runs_at_import(mutant) and known == now:
            return self.enters.get(_name(mutant), set())
        rows = (tests for b, tests in self.enters.items() if b.startswith(f"{mutant.file}:"))
        return set().union(*rows) or set(self.tests)


def _name(mutant: Mutant) -> str:
    return f"{mutant.file}:{source_of(mutant.file).blocks[mutant.block]}"


def _blocks(hits: Sequence[int]) -> Iterator[str]:
    """The names of blocks that were hit; `hits` are numbers: file << 16 | block."""
    names = files()
    for hit in hits:
        file = names[hit >> 16]
        yield f"{file}:{source_of(file).blocks[hit & 0xFFFF]}"


def _costs(seconds: Mapping[str, float]) -> dict[str, float]:
    """A cost of each test to sort by: its seconds, increased for each further case of one test function."""
    rank: dict[str, int] = {}
    costs = {}
    for test in sorted(seconds, key=lambda test: (seconds[test], test)):
        function = test.partition("[")[0]
        rank[function] = rank.get(function, 0) + 1
        costs[test] = max(seconds[test], _LEAST_S) * rank[function]
    return costs


def test_files(paths: Sequence[str]) -> list[str]:
    """The test files in some files and folders."""
    names: list[str] = []
    for path in paths:
        folder = ROOT / path
        inside = sorted(folder.rglob("test_*.py")) if folder.is_dir() else [folder]
        names += [one.relative_to(ROOT).as_posix() for one in inside]
    return names
