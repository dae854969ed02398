"""Rankings on disk: in one JSON file that people share, or in the cache of compiled modules."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from ptxgen.errors import ConfigError
from ptxgen.runtime.cache import CacheKey, DiskCache
from ptxgen.tuning.ranking import SCHEMA, Ranking

_TARGET: Final = "tuning"  # of the cache's entries


class Store(Protocol):
    """A store of rankings of configurations, such as a JSON file."""

    def get(self, kernel: str, judge: str, device: str, problem: Mapping[str, Any]) -> Ranking | None:
        """The stored ranking of a kernel for a problem by a judge (a GPU or the model); None without one."""

    def put(self, ranking: Ranking) -> None:
        """Store a ranking in place of one for the same problem."""


class InCache:
    """Stores rankings as entries of a disk cache, with its promises about owners, size and damage (None: none
    are stored).
    """

    def __init__(self, disk: DiskCache | None) -> None:
        self._disk = disk

    def get(self, kernel: str, judge: str, device: str, problem: Mapping[str, Any]) -> Ranking | None:
        """The stored ranking of a kernel for a problem by a judge (a GPU or the model); None without one."""
        data = self._disk.get(_key(kernel, judge, device, problem)) if self._disk is not None else None
        return None if data is None else Ranking.of_json(json.loads(data))

    def put(self, ranking: Ranking) -> None:
        """Store a ranking in place of one for the same problem."""
        if self._disk is not None:
            key = _key(ranking.kernel, ranking.judge, ranking.device, ranking.problem)
            self._disk.put(key, json.dumps(ranking.as_json()).encode())


def _key(kernel: str, judge: str, device: str, problem: Mapping[str, Any]) -> CacheKey:
    text = json.dumps([SCHEMA, kernel, device, problem], sort_keys=True)
    return CacheKey(text, _TARGET, "autotune", judge)


class InFile:
    """Rankings in a JSON file, which is read at each use and replaced as a whole, so that several processes
    and machines may share it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, kernel: str, judge: str, device: str, problem: Mapping[str, Any]) -> Ranking | None:
        """The ranking of a kernel for a problem by a judge; None if there is none. Raises `ConfigError` for a
        file that is not one of rankings.
        """
        return next((r for r in self._all() if _about(r) == (kernel, judge, device, problem)), None)

    def put(self, ranking: Ranking) -> None:
        """Store a ranking in place of one for the same problem. Raises `ConfigError` if the file cannot be
        written.
        """
        others = [r for r in self._all() if _about(r) != _about(ranking)]
        every = sorted([*others, ranking], key=lambda r: json.dumps([*_about(r)[:3], dict(r.problem)]))
        text = json.dumps({"rankings": [r.as_json() for r in every]}, indent=1) + "\n"
        try:
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, self.path.stat().st_mode & 0o777 if self.path.exists() else 0o644)
            os.replace(name, self.path)
        except OSError as error:
            raise ConfigError(f"autotune: cannot write {self.path}: {error.strerror or error}") from error

    def _all(self) -> list[Ranking]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            rankings = [Ranking.of_json(one) for one in data["rankings"]]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"autotune: {self.path} is no file of rankings ({error}); name another file, or remove it"
            ) from error
        return [r for r in rankings if r is not None]


def _about(ranking: Ranking) -> tuple[str, str, str, Mapping[str, Any]]:
    return ranking.kernel, ranking.judge, ranking.device, ranking.problem
