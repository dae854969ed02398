"""The process in which mutants of the analysers are judged, or the tests are recorded.

It collects the tests once and then forks a child for each mutant, in which the functions with the mistake get
the mutant's code and some tests are run. A mistake in what runs when a module is imported is judged in a
child that was forked before anything was imported. Neither this module nor what it imports may import
`ptxgen`.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import select
import signal
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from tools.analyses.source import HIT, ROOT, Source, files, module_name

TIME: Final = "time"  # what caught a mutant that does not end
_FIRST_S: Final = 5.0  # of processor time that a test may take, and so many times what it takes
_TIMES: Final = 8.0
_WALL: Final = 8.0  # of a second of processor time, on a machine that has other work
_LONGEST_S: Final = 40.0  # of processor time that a test may take to be recorded
_MEMORY: Final = 6 << 30  # bytes that a mutant may take

OPTIONS: Final = (
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:cov",
    "-p",
    "no:faulthandler",
    "-p",
    "no:ptxgen.pytest_plugin",  # which would import `ptxgen` too early
    "--assert=plain",  # or pytest loads our modules itself, since our distribution has a plugin
    "--strict-markers",
    "--import-mode=importlib",
    "-W",
    "ignore",
    "-o",
    "addopts=",
)
MARKS: Final = "not nightly and not slow and not gpu"
MARKS_OF_SOME: Final = "not nightly and not gpu"  # when only some files of tests judge


@dataclass(frozen=True, slots=True)
class Job:
    """A mutant to judge: the text of its file, and the tests, in their order, with the seconds that
    each takes. `at_import`: the mistake runs when the module is imported.
    """

    file: str
    source: str
    tests: tuple[tuple[str, float], ...]
    at_import: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What caught a mutant: the name of a test, `TIME`, or "" for nothing; and how many tests were run."""

    caught_by: str
    run: int
    seconds: float


Say = Callable[[object], None]


# ------------------------------------------------------------------------------------------- forks


def forked(work: Callable[[Say], None], limit_s: float) -> tuple[list[Any], int]:
    """The messages of a forked child that does `work`, and the signal that ended it, 0 if none."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        os.close(reading)
        connection = Connection(writing)
        try:
            work(connection.send)
        except BaseException as error:
            connection.send(("failed", f"{type(error).__name__}: {error}"))
        os._exit(0)
    os.close(writing)
    messages = _heard(reading, pid, limit_s)
    _, status = os.waitpid(pid, 0)
    _kill(pid)  # what it has started, too
    return messages, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _heard(reading: int, pid: int, limit_s: float) -> list[Any]:
    messages: list[Any] = []
    end = time.monotonic() + limit_s
    with Connection(reading, writable=False) as connection:
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([reading], [], [], left)[0]:
                _kill(pid)
                messages.append(("failed", TIME))
                return messages
            try:
                messages.append(connection.recv())
            except EOFError:
                return messages


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


# ------------------------------------------------------------------------------- mutants and hits


class _Loader(SourceFileLoader):
    """Loads a module from a given text or syntax tree."""

    def __init__(self, name: str, path: str, code: types.CodeType, names: dict[str, object]):
        super().__init__(name, path)
        self._code = code
        self._globals = names

    def get_code(self, fullname: str) -> types.CodeType:
        del fullname
        return self._code

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__.update(self._globals)
        super().exec_module(module)


class Importer:
    """An import hook that gives some modules another text than that of their files."""

    def __init__(self, code: Callable[[str], Any], chosen: Iterable[str], hit: object = None):
        self._code = code
        self._files = {module_name(file): file for file in chosen}
        self._globals = {HIT: hit}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of the module `name` if it is one of these modules, else None."""
        spec = PathFinder.find_spec(name, path, target) if name in self._files else None
        if spec is not None and spec.origin is not None:
            code = compile(self._code(self._files[name]), spec.origin, "exec")
            spec.loader = _Loader(name, spec.origin, code, self._globals)
        return spec


def recorded_importer(hits: set[int]) -> Importer:
    """An import hook for modules that record in `hits` which of their blocks run: file << 16 | block."""
    number = {file: n for n, file in enumerate(files())}

    def tree(file: str) -> Any:
        return Source(file, (ROOT / file).read_text(encoding="utf-8")).recorded()

    class Numbered(Importer):
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            file = self._files.get(name)
            if file is not None:
                base, add = number[file] << 16, hits.add
                self._globals = {HIT: lambda block: add(base | block)}
            return super().find_spec(name, path, target)

    return Numbered(tree, files())


def live_functions(file: str) -> dict[tuple[str, int], list[types.FunctionType]]:
    """The function objects of a file that exist in this process, by qualified name and line."""
    path = str(ROOT / file)
    functions: dict[tuple[str, int], list[types.FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType) and one.__code__.co_filename == path:
            code = one.__code__
            functions.setdefault((code.co_qualname, code.co_firstlineno), []).append(one)
    return functions


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code objects inside of a code object, in order."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from codes(inner)


def put(file: str, source: str, live: dict[tuple[str, int], list[types.FunctionType]]) -> None:
    """Replace the code of a file's functions by that of the text `source`, in place."""
    path = str(ROOT / file)
    old = _by_name(compile((ROOT / file).read_text(encoding="utf-8"), path, "exec"))
    new = _by_name(compile(source, path, "exec"))
    for name, of_name in old.items():
        others = new.get(name, [])
        if len(others) != len(of_name):
            continue  # inside of a function whose code has changed
        for before, after in zip(of_name, others, strict=True):
            for function in live.get((name, before.co_firstlineno), ()):
                if before.co_freevars == after.co_freevars:
                    function.__code__ = after


def _by_name(code: types.CodeType) -> dict[str, list[types.CodeType]]:
    by_name: dict[str, list[types.CodeType]] = {}
    for inner in codes(code):
        by_name.setdefault(inner.co_qualname, []).append(inner)
    return by_name


def caches(prefixes: tuple[str, ...]) -> list[Any]:
    """The functions of some packages that have a cache to clear."""
    return [
        one
        for one in gc.get_objects()
        if isinstance(one, functools._lru_cache_wrapper)
        and str(getattr(one, "__module__", "")).startswith(prefixes)
    ]


# -------------------------------------------------------------------------------------- running


class Tests:
    """A plugin of pytest that, once the tests are collected, calls a function instead of running all
    tests.
    """

    def __init__(self, do: Callable[[Tests], None]) -> None:
        self._do = do
        self._failed = self._skipped = False
        self.items: dict[str, pytest.Item] = {}
        self.broken = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember whether a file could not be imported."""
        self.broken |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test."""
        self._failed |= report.failed
        self._skipped |= report.skipped

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Call the function with the collected tests, instead of running all of them."""
        self.items = {item.nodeid: item for item in session.items}
        self._do(self)
        return True

    def run(self, test: str, then: str | None) -> str:
        """Run a test: "passed", "failed" or "skipped". `then` is the test that runs after it."""
        self._failed = self._skipped = False
        item = self.items[test]
        following = self.items[then] if then is not None else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return "failed" if self._failed else "skipped" if self._skipped else "passed"


def collected(arguments: Sequence[str], do: Callable[[Tests], None], basetemp: str) -> None:
    """Collect the tests of some files with pytest and pass them to a function."""
    hypothesis: Any = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None)
    hypothesis.settings.load_profile("mutants")
    plugin = Tests(do)
    options = [*OPTIONS, f"--basetemp={basetemp}"]
    pytest.main([*options, *arguments], plugins=[plugin])


def judge_here(tests: Tests, job: Job, say: Say) -> None:
    """Run the tests of a mutant until one fails."""
    if tests.broken:
        say(("failed", "import"))
        return
    resource: Any = importlib.import_module("resource")  # which Windows has not
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, hard))
    chosen = [(test, seconds) for test, seconds in job.tests if test in tests.items]
    following = [*(test for test, _ in chosen[1:]), None][: len(chosen)]
    for (test, seconds), then in zip(chosen, following, strict=True):
        say(("begins", test))
        limit = _FIRST_S + _TIMES * seconds
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, limit * _WALL)
        if tests.run(test, then) == "failed":
            say(("failed", test))
            return
    say(("done", ""))


def outcome(messages: Sequence[tuple[str, str]], ended_by: int, seconds: float) -> Outcome:
    """The outcome of a child process from its messages and the signal that ended it."""
    begun = sum(word == "begins" for word, _ in messages)
    failed = [what for word, what in messages if word == "failed"]
    if failed:
        return Outcome(failed[0], begun, seconds)
    if ended_by in (signal.SIGPROF, signal.SIGALRM, signal.SIGKILL):
        return Outcome(TIME, begun, seconds)
    if ended_by or not any(word == "done" for word, _ in messages):
        return Outcome("crash", begun, seconds)
    return Outcome("", begun, seconds)


def _timed(work: Callable[[Say], None], limit_s: float) -> Outcome:
    start = time.monotonic()
    messages, ended_by = forked(work, limit_s)
    return outcome(messages, ended_by, time.monotonic() - start)


def _limit(job: Job) -> float:
    return 60 + _WALL * sum(_FIRST_S + seconds for _, seconds in job.tests[:200])


# ------------------------------------------------------------------------------------- processes


class _Judge:
    """Judges jobs in a process that has collected the tests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, tests: Tests) -> None:
        stale = caches(("ptxgen", "flash"))
        live = {file: live_functions(file) for file in files()}
        gc.collect()
        gc.freeze()
        self._connection.send("a file of tests cannot be imported" if tests.broken else "")
        while True:
            job: Job | None = self._connection.recv()
            if job is None:
                return

            def work(say: Say, job: Job = job) -> None:
                put(job.file, job.source, live[job.file])
                for cache in stale:
                    cache.cache_clear()
                judge_here(tests, job, say)

            self._connection.send(_timed(work, _limit(job)))


def _fresh(job: Job, marks: str, basetemp: str) -> Outcome:
    """Judge a mutant in a child process that imports everything again."""

    def work(say: Say) -> None:
        sys.meta_path.insert(0, Importer(lambda _: job.source, [job.file]))
        wanted = list(dict.fromkeys(test.partition("::")[0] for test, _ in job.tests))
        collected([*wanted, "-m", marks], lambda tests: judge_here(tests, job, say), basetemp)

    return _timed(work, _limit(job) + 60)


def judge_forever(connection: Connection, paths: Sequence[str], marks: str, basetemp: str) -> None:
    """Send what is wrong with the tests, then answer each job with its outcome, until a job is None."""
    here, there = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(here[1])  # or the end of the other process would not be noticed
        os.close(there[0])
        both = _Both(Connection(here[0]), Connection(there[1]))
        collected([*paths, "-m", marks], _Judge(both), f"{basetemp}-warm")  # type: ignore[arg-type]
        os._exit(0)
    os.close(here[0])
    os.close(there[1])
    warm = _Both(Connection(there[0]), Connection(here[1]))
    connection.send(warm.recv())
    while True:
        job: Job | None = connection.recv()
        if job is None or not job.at_import:
            warm.send(job)
        if job is None:
            os.waitpid(pid, 0)
            return
        connection.send(_fresh(job, marks, basetemp) if job.at_import else warm.recv())


@dataclass(frozen=True, slots=True)
class _Both:
    """The reading and the writing end of the pipes to another process."""

    reading: Connection
    writing: Connection

    def recv(self) -> Any:
        """The next object that the other process has sent."""
        return self.reading.recv()

    def send(self, what: object) -> None:
        """Send an object to the other process."""
        self.writing.send(what)


def record_forever(connection: Connection, paths: Sequence[str], marks: str, basetemp: str) -> None:
    """Send the names of the tests and the blocks that run when they are imported; then run the tests of each
    list that arrives, and send of each: name, seconds, verdict, blocks. Ends after None.
    """
    hits: set[int] = set()
    sys.meta_path.insert(0, recorded_importer(hits))

    def record(tests: Tests) -> None:
        stale = caches(("ptxgen.check", "ptxgen.interpreter", "ptxgen.isa"))
        connection.send((list(tests.items), sorted(hits)))
        while True:
            wanted: list[str] | None = connection.recv()
            if wanted is None:
                return

            messages: list[Any] = []
            while len(messages) < len(wanted):
                left = wanted[len(messages) :]

                def work(say: Say, left: list[str] = left) -> None:
                    for test, then in zip(left, [*left[1:], None], strict=True):
                        for cache in stale:
                            cache.cache_clear()
                        hits.clear()
                        signal.setitimer(signal.ITIMER_PROF, _LONGEST_S)
                        start = _spent()
                        verdict = tests.run(test, then)
                        say((test, _spent() - start, verdict, sorted(hits)))

                more = forked(work, 3600.0)[0]
                if len(more) < len(left):  # the one that follows does not end
                    more = [*more, (left[len(more)], _LONGEST_S, "failed", [])]
                messages += more
            connection.send(messages)

    collected([*paths, "-m", marks], record, basetemp)


def _spent() -> float:
    """Seconds of processor time of this process and of those that it waited for."""
    return sum(os.times()[:4])


def main(arguments: Sequence[str]) -> None:
    """Serve on an inherited socket. The arguments are the task, the socket's number, the temporary folder,
    the marks of the tests and their paths.
    """
    what, handle, basetemp, marks, *paths = arguments
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    for name in ("numpy", "ml_dtypes", "jinja2", "hypothesis", "threadpoolctl"):
        importlib.import_module(name)
    log = os.open(Path(basetemp).parent / f"{what}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    serve = {"judge": judge_forever, "record": record_forever}[what]
    serve(Connection(int(handle)), paths, marks, basetemp)
