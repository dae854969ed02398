"""Proofs on disk: when they are used, and when a kernel is proved again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from command_line import Command

import ptxgen as px
from ptxgen import Pointer, f32, u32
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.prove.record import proofs_of, read_record, recorded
from ptxgen.commands import cache as command
from ptxgen.parse import parse
from ptxgen.runtime import proof_cache as proof_module
from ptxgen.runtime.cache import CacheKey, CacheWarning, DiskCache, ModuleCache
from ptxgen.runtime.proof_cache import Obligation, ProofCache, prover_version
from ptxgen.tensormap import TensorMap

if TYPE_CHECKING:
    from ptxgen.check.prove import Proofs

ROOT = Path(__file__).resolve().parents[2]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes of POSIX")
CAP = 1 << 20
BLOCK = 64
ARRAY = GlobalArray("X", (), "4 * (n)", 4)
CONTRACT = GlobalContract((ARRAY,), (), {"n": (1, 1 << 20), "grid": (1, 1 << 20)}, ("grid", 1, 1))


def guarded(k: Any, X: Pointer[f32], n: u32) -> None:
    row = k.shared("row", (1, BLOCK))
    i = k.block_id() * BLOCK + k.thread_id()
    with k.when(i < n):
        row[0, k.thread_id()] = X[i]
    k.barrier()
    with k.when(i < n):
        X[i] = row[0, k.thread_id()]


def unguarded(k: Any, X: Pointer[f32], n: u32) -> None:
    with k.when(n > 0):
        X[k.block_id() * BLOCK + k.thread_id()] = 1.0


def outside(k: Any, X: Pointer[f32], n: u32) -> None:
    row = k.shared("row", (1, BLOCK // 2))
    row[0, k.thread_id()] = 1.0
    with k.when(k.block_id() * BLOCK + k.thread_id() < n):
        X[k.block_id() * BLOCK + k.thread_id()] = 1.0


def of_data(k: Any, X: Pointer[f32], n: u32) -> None:
    with k.when(n > 0):
        X[k.cvt(X[0], dtype=u32, rnd="rzi")] = 1.0


def obligation(function: Callable[..., None] = guarded, **other: Any) -> Obligation:
    built = px.kernel(threads=BLOCK)(function).build()
    fields: dict[str, Any] = {"contract": CONTRACT, "params": {}, **other}
    return Obligation(built.module, built.text, BLOCK, **fields)


def everything(proofs: Proofs) -> list[Any]:
    """All fields of all verdicts, those that equality ignores included."""
    assert proofs.global_memory is not None
    return [asdict(proofs.shared), asdict(proofs.global_memory)]


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", CAP)


class Prover:
    """The number of proofs that have been made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proofs = 0
        real = Obligation.prove

        def prove(of: Obligation) -> Proofs:
            self.proofs += 1
            return real(of)

        monkeypatch.setattr(Obligation, "prove", prove)


@pytest.fixture
def prover(monkeypatch: pytest.MonkeyPatch) -> Prover:
    return Prover(monkeypatch)


# A proof that is stored


@pytest.mark.parametrize("function", [guarded, of_data])
def test_a_stored_proof_is_the_proof_and_nothing_is_proved(
    disk: DiskCache, prover: Prover, function: Callable[..., None]
) -> None:
    about = obligation(function)
    assert not ProofCache(disk).has(about)
    first = ProofCache(disk).proofs(about)
    assert first.complete == (function is guarded)
    again = obligation(function)
    assert ProofCache(disk).has(again)
    assert everything(ProofCache(disk).proofs(again)) == everything(first)
    assert ProofCache(disk).proofs(again).report() == first.report()
    assert prover.proofs == 1


def test_a_stored_proof_is_about_the_lines_of_the_module_at_hand(disk: DiskCache) -> None:
    about = obligation()
    ProofCache(disk).proofs(about)
    parsed = replace(about, module=parse(about.text))
    result = ProofCache(disk).proofs(parsed)
    assert everything(result) == everything(parsed.prove())
    assert all(v.line for v in result.shared.accesses)


def test_without_a_contract_shared_memory_alone_is_stored(disk: DiskCache, prover: Prover) -> None:
    about = obligation(contract=None)
    first, second = (ProofCache(disk).proofs(about) for _ in range(2))
    assert (second, second.global_memory, prover.proofs) == (first, None, 1)


@pytest.mark.parametrize("function", [unguarded, outside])
def test_a_fault_is_not_stored(disk: DiskCache, prover: Prover, function: Callable[..., None]) -> None:
    about = obligation(function)
    for count in (1, 2):
        proofs = ProofCache(disk).proofs(about)
        assert proofs.global_memory is not None
        assert bool(proofs.shared.violations) == (function is outside)
        assert bool(proofs.global_memory.violations) == (function is unguarded)
        assert prover.proofs == count
    assert not ProofCache(disk).has(about)
    assert disk.info().total.entries == 0


def test_without_a_disk_each_proof_is_made(prover: Prover) -> None:
    for count in (1, 2):
        assert ProofCache(None).proofs(obligation()).complete
        assert prover.proofs == count


def test_a_built_function_asks_the_cache(
    disk: DiskCache, prover: Prover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_module, "default_cache", lambda: ModuleCache(disk))
    for _ in range(2):
        kernel = px.kernel(threads=BLOCK)(guarded)
        assert kernel.prove(X=("n",), grid="(n + 63) // 64").complete
        assert kernel.build().refutations() == ()
    assert prover.proofs == 2  # of all accesses with a contract, and before a launch


FIRST_LAUNCH = """
import os, sys
sys.path[:0] = sys.argv[1:]
import test_proof_cache as of
built = of.px.kernel(threads=of.BLOCK)(of.guarded).build()
print(built.refutations(), "ptxgen.check.prove.proof" in sys.modules)
"""


def test_a_launch_with_a_stored_proof_does_not_import_the_prover(tmp_path: Path) -> None:
    folders = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
    environment = {**os.environ, "PTXGEN_CACHE": "on", "PTXGEN_CACHE_DIR": str(tmp_path / "cache")}
    for imported in (True, False):
        ran = subprocess.run(
            [sys.executable, "-c", FIRST_LAUNCH, *folders],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert ran.stdout == f"() {imported}\n"


# Keys

BASE = obligation()
OTHERS = {
    "text": obligation(of_data),
    "block": replace(BASE, block=32),
    "no contract": obligation(contract=None),
    "a pointer": obligation(contract=replace(CONTRACT, arrays=(replace(ARRAY, pointer="Y"),))),
    "an axis": obligation(contract=replace(CONTRACT, arrays=(replace(ARRAY, axes=(Axis("n", 4),)),))),
    "bytes": obligation(contract=replace(CONTRACT, arrays=(replace(ARRAY, nbytes="4 * (n - 1)"),))),
    "an alignment": obligation(contract=replace(CONTRACT, arrays=(replace(ARRAY, align=16),))),
    "a stride": obligation(contract=replace(CONTRACT, strides=("s",))),
    "a bound": obligation(contract=replace(CONTRACT, bounds={**CONTRACT.bounds, "n": (0, 1 << 20)})),
    "a grid": obligation(contract=replace(CONTRACT, grid=("grid", "1", 1))),
    "an equation": obligation(contract=replace(CONTRACT, equal={"grid": "n"})),
    "a parameter": obligation(params={"n": 5}),
    "a map": obligation(params={"X": TensorMap(0, (8,), "f32", (1,))}),
    "a box": obligation(params={"X": TensorMap(0, (16,), "f32", (1,))}),
    "a swizzle": obligation(params={"X": TensorMap(0, (8,), "f32", (1,), swizzle="32B")}),
    "steps": obligation(steps=20_000),
}


@pytest.mark.parametrize("other", OTHERS)
def test_all_that_a_proof_is_about_is_in_its_key(other: str) -> None:
    digests = {name: of.key.digest for name, of in (*OTHERS.items(), ("", BASE)) if of.key is not None}
    assert len(digests) == len(OTHERS) + 1
    assert [name for name, digest in digests.items() if digest == digests[other]] == [other]


def test_another_contract_is_proved(disk: DiskCache, prover: Prover) -> None:
    assert ProofCache(disk).proofs(BASE).complete
    assert not ProofCache(disk).proofs(OTHERS["bytes"]).complete
    assert prover.proofs == 2


def test_a_map_of_an_array_has_no_key(disk: DiskCache) -> None:
    of_array = obligation(params={"X": TensorMap(np.zeros(16, np.float32), (8,))})
    assert of_array.key is None
    assert not ProofCache(disk).has(of_array)


# The version of the prover


def versions(monkeypatch: pytest.MonkeyPatch, files: list[Path]) -> None:
    """The version is that of these files, as a new process sees it."""
    monkeypatch.setattr(proof_module, "_PACKAGE", files[0].parent)
    monkeypatch.setattr(proof_module, "_sources", lambda: sorted(files))
    version = prover_version.__wrapped__
    monkeypatch.setattr(proof_module, "prover_version", version)


def source(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    os.utime(file, (1, 1))
    return file


def test_another_prover_proves_again(
    disk: DiskCache, tmp_path: Path, prover: Prover, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [source(tmp_path, "a.py", "x = 1\n"), source(tmp_path, "b.py", "y = 1\n")]
    versions(monkeypatch, files)
    ProofCache(disk).proofs(obligation())
    assert ProofCache(disk).has(obligation())
    for text in ("x = 2\n", "x = 1\n"):
        source(tmp_path, "a.py", text)
        assert ProofCache(disk).has(obligation()) == (text == "x = 1\n")
    files[1] = files[1].rename(tmp_path / "c.py")  # a file of another name with the same text
    assert not ProofCache(disk).has(obligation())
    files[1] = files[1].rename(tmp_path / "b.py")
    assert ProofCache(disk).has(obligation())
    monkeypatch.setattr(np, "__version__", "0.1")
    ProofCache(disk).proofs(obligation())
    assert prover.proofs == 2


def test_sources_that_are_not_what_the_process_runs_store_nothing(
    disk: DiskCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = source(tmp_path, "a.py", "x = 1\n")
    versions(monkeypatch, [file])
    about = obligation()
    assert about.key is not None
    os.utime(file, (proof_module._BEGAN + 5, proof_module._BEGAN + 5))  # edited before the proof ends
    ProofCache(disk).proofs(about)
    assert disk.info().total.entries == 0
    assert obligation().key is None
    file.unlink()
    assert obligation().key is None
    ProofCache(disk).proofs(about)
    assert disk.info().total.entries == 0
    monkeypatch.setattr(proof_module, "_sources", list)
    assert obligation().key is None


def test_the_version_is_of_all_that_the_prover_imports() -> None:
    script = (
        "import json, sys; import ptxgen.check.prove.proof, ptxgen.check.prove.record\n"
        "print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'ptxgen']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    imported = {Path(file).resolve() for file in json.loads(ran.stdout)}
    assert len(imported) > 100
    assert imported <= set(proof_module._sources())


# Entries that are not used


def only_entry(disk: DiskCache) -> Path:
    (path,) = disk.directory.glob("*.entry")
    return path


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def writable(path: Path) -> None:
    path.chmod(0o666)


def linked(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


@POSIX
@pytest.mark.parametrize("harm", [flipped, cut, writable, linked])
def test_a_harmed_entry_is_proved_again_and_replaced(
    disk: DiskCache, prover: Prover, harm: Callable[[Path], None]
) -> None:
    first = ProofCache(disk).proofs(obligation())
    harm(only_entry(disk))
    assert not ProofCache(disk).has(obligation())
    assert ProofCache(disk).proofs(obligation()) == first
    assert prover.proofs == 2
    assert ProofCache(disk).has(obligation())


@POSIX
def test_an_entry_of_another_user_is_proved_again(
    disk: DiskCache, prover: Prover, monkeypatch: pytest.MonkeyPatch
) -> None:
    ProofCache(disk).proofs(obligation())
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(disk.directory).st_uid + 1)
    with pytest.warns(CacheWarning, match="belongs to user"):
        assert ProofCache(disk).proofs(obligation()).complete
    assert prover.proofs == 2


def changed(record: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**record, **fields}


def with_row(record: dict[str, Any], at: int, value: object) -> dict[str, Any]:
    """The record with another value in the first row of accesses to global memory."""
    first, *rest = record["global_memory"]
    row = [*first]
    row[at] = value
    return changed(record, global_memory=[row, *rest])


UNREADABLE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda record: [record],
    "a key too many": lambda record: changed(record, more=1),
    "a key too few": lambda record: {key: record[key] for key in record if key != "barriers"},
    "another kernel": lambda record: changed(record, kernel="other"),
    "no list": lambda record: changed(record, accesses={}),
    "no row": lambda record: changed(record, accesses=[{}]),
    "a short row": lambda record: changed(record, accesses=[["proved"]]),
    "a block of two": lambda record: changed(record, block=[64, 1]),
    "a negative size": lambda record: changed(record, dynamic_smem=-1),
    "a violation": lambda record: with_row(record, 0, "violation"),
    "an unknown word": lambda record: with_row(record, 0, "right"),
    "another function": lambda record: with_row(record, 1, "other"),
    "an instruction too many": lambda record: with_row(record, 2, 10_000),
    "an instruction before the first": lambda record: with_row(record, 2, -1),
    "a truth": lambda record: with_row(record, 2, True),
    "a fraction": lambda record: with_row(record, 6, 1.5),
}


@pytest.mark.parametrize("wrong", UNREADABLE)
def test_a_record_that_no_prover_writes_is_not_read(disk: DiskCache, prover: Prover, wrong: str) -> None:
    about = obligation()
    data = recorded(about.prove())
    assert data is not None
    assert about.key is not None
    disk.put(about.key, json.dumps(UNREADABLE[wrong](json.loads(data))).encode())
    assert not ProofCache(disk).has(about)
    assert ProofCache(disk).proofs(about).complete
    assert prover.proofs == 2
    assert ProofCache(disk).has(about)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"null"])
def test_what_is_not_json_is_no_record(data: bytes) -> None:
    assert read_record(data, BASE.module) is None


def test_a_record_read_gives_the_proofs() -> None:
    proofs = BASE.prove()
    data = recorded(proofs)
    assert data is not None
    record = read_record(data, BASE.module)
    assert record is not None
    assert everything(proofs_of(record, BASE.module)) == everything(proofs)


# Limits, and other processes


def test_a_directory_that_is_full_keeps_the_newest_proofs(disk: DiskCache) -> None:
    ProofCache(disk).proofs(obligation())
    size = only_entry(disk).stat().st_size
    small = DiskCache(disk.directory, 2 * size + 10)
    for n in range(1, 6):
        ProofCache(small).proofs(obligation(params={"n": n}))
    assert small.info().total.nbytes <= 2 * size + 10
    assert ProofCache(small).has(obligation(params={"n": 5}))
    assert not ProofCache(small).has(obligation())


def test_a_proof_larger_than_the_directory_is_made_each_time(disk: DiskCache, prover: Prover) -> None:
    small = ProofCache(DiskCache(disk.directory, 100))
    with pytest.warns(CacheWarning, match="larger than the cap of 100"):
        assert small.proofs(obligation()).complete
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert small.proofs(obligation()).complete
    assert prover.proofs == 2


def test_a_setting_that_cannot_be_used_stores_no_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.runtime.cache._DEFAULT", {})
    monkeypatch.setenv("PTXGEN_CACHE_SIZE", "none")
    assert proof_module.proof_cache().disk is None


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from ptxgen.runtime.cache import DiskCache
from ptxgen.runtime.proof_cache import ProofCache
import test_proof_cache as of
cache = ProofCache(DiskCache(Path(sys.argv[1]), 1 << 20))
print(all(cache.proofs(of.obligation(params={"n": n})).complete for n in (1, 2, 3)))
"""


def test_writers_at_once_lose_nothing(disk: DiskCache) -> None:
    folders = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
    script = [sys.executable, "-c", WRITER, str(disk.directory), *folders]
    running = [subprocess.Popen(script, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in running] == ["True\n"] * 3
    assert disk.verify() == (3, ())
    for n in (1, 2, 3):
        assert ProofCache(disk).has(obligation(params={"n": n}))


# `ptxgen cache`


def test_the_command_counts_verifies_and_removes_proofs(
    disk: DiskCache, capsys: pytest.CaptureFixture[str]
) -> None:
    call = Command(command.main, "ptxgen cache", capsys)
    where = ("--dir", str(disk.directory), "--json")
    disk.put(CacheKey("ret;", "sm_80", "ptxas", "13.0"), b"cubin")
    ProofCache(disk).proofs(obligation())
    targets = call.document("info", *where)["targets"]
    assert {name: usage["entries"] for name, usage in targets.items()} == {"proofs": 1, "sm_80": 1}
    assert call.document("verify", *where)["checked"] == 2
    for path in disk.directory.glob("*.entry"):
        flipped(path) if b'"proofs"' in path.read_bytes() else None
    assert len(call.document("verify", "--fix", *where, code=1)["damaged"]) == 1
    assert not ProofCache(disk).has(obligation())
    ProofCache(disk).proofs(obligation())
    assert call.document("clear", *where)["removed"] == 2
    assert not ProofCache(disk).has(obligation())
