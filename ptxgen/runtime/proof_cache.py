"""Proofs on disk: entries of the module cache, so that a new process does not prove a kernel again.

The key of an entry has the kernel's text, everything else that the proof is about, and the version of the
prover, a hash of its source files. A proof that shows a fault is not stored. An entry that is damaged, of
another user or of another prover is not used: the kernel is proved again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.check.prove.record import proofs_of, read_record, recorded
from ptxgen.errors import ConfigError
from ptxgen.runtime.cache import CacheKey, DiskCache, default_cache
from ptxgen.tensormap import TensorMap

if TYPE_CHECKING:
    from ptxgen.check.prove import Proofs
    from ptxgen.check.prove.contract import GlobalContract
    from ptxgen.ir import Module

TARGET: Final = "proofs"  # of the cache's entries

_PACKAGE: Final = Path(__file__).resolve().parent.parent
_BEGAN: Final = time.time()  # a source file that is newer may not be what this process runs


@dataclass(frozen=True, eq=False)
class Obligation:
    """What a proof is about: a module of one kernel and its text, the threads of a CTA
    along x, y and z, the contract of its
    launches, and the bounds of its parameters. Without a contract, global memory is not proved. `steps`
    limits the proof of shared memory; None is the prover's own limit.
    """

    module: Module
    text: str = field(repr=False)
    block: int | tuple[int, ...]
    contract: GlobalContract | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None

    def prove(self) -> Proofs:
        """Prove it now, whether or not the cache has the proof."""
        # Imported here, because a launch whose kernel has a stored proof does not need it.
        from ptxgen.check.prove import Proofs, prove, prove_shared

        if self.steps is None:
            return prove(self.module, block=self.block, contract=self.contract, params=self.params)
        shared = prove_shared(self.module, block=self.block, params=self.params, steps=self.steps)
        return Proofs(shared, None)

    @cached_property
    def key(self) -> CacheKey | None:
        """The key of the proof in the cache. None if it cannot be stored, because the sources of the prover
        are not at hand or a tensor map has an array as its tensor.
        """
        version = prover_version()
        tensors = [bound.base for bound in self.params.values() if isinstance(bound, TensorMap)]
        if version is None or not all(isinstance(base, int) for base in tensors):
            return None
        about = (str(self.block), repr(self.contract), repr(dict(self.params)), str(self.steps))
        return CacheKey(self.text, TARGET, "ptxgen's prover", version, about)


class ProofCache:
    """The proofs on a disk (None: nothing is stored)."""

    def __init__(self, disk: DiskCache | None) -> None:
        self.disk = disk

    def has(self, obligation: Obligation) -> bool:
        """Whether a proof without faults is stored."""
        return self._record(obligation) is not None

    def proofs(self, obligation: Obligation) -> Proofs:
        """The proofs, stored ones or made now; they are then stored unless they show a fault.

        Raises what `ptxgen.check.prove.prove` raises.
        """
        record = self._record(obligation)
        if record is not None:
            return proofs_of(record, obligation.module)
        proofs = obligation.prove()
        if self.disk is not None and obligation.key is not None and not _has_changed(_sources()):
            data = recorded(proofs)
            if data is not None:
                self.disk.put(obligation.key, data)
        return proofs

    def _record(self, obligation: Obligation) -> dict[str, Any] | None:
        if self.disk is None or obligation.key is None:
            return None
        data = self.disk.get(obligation.key)
        return None if data is None else read_record(data, obligation.module)


def proof_cache() -> ProofCache:
    """The proofs on the disk of the process's cache; without a disk if a variable has an invalid value, which
    other users of the cache report.
    """
    with contextlib.suppress(ConfigError):
        return ProofCache(default_cache().disk)
    return ProofCache(None)


@functools.cache
def prover_version() -> str | None:
    """The version of the prover: a hash of its source files and the version of numpy. None if files cannot
    be read or are newer than this process, which may run others.
    """
    files, sha = _sources(), hashlib.sha256()
    try:
        for file in files:
            data = file.read_bytes()
            sha.update(f"{file.relative_to(_PACKAGE).as_posix()} {len(data)}\n".encode())
            sha.update(data)
    except OSError:
        return None
    if not files or _has_changed(files):
        return None
    return f"{sha.hexdigest()}, numpy {np.__version__}"


def _sources() -> list[Path]:
    """The source files of the prover: of all modules that it imports, and this one."""
    folders = [file for name in ("check", "isa", "parse") for file in (_PACKAGE / name).rglob("*.py")]
    return sorted([*folders, *_PACKAGE.glob("*.py"), Path(__file__).resolve()])


def _has_changed(files: list[Path]) -> bool:
    """Whether a file has been written, or removed, since this process began."""
    try:
        return any(file.stat().st_mtime > _BEGAN for file in files)
    except OSError:
        return True
