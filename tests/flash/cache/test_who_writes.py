"""Which part of a call over a cache writes the new rows and rotates the queries: the attending kernel, a
kernel that only appends, or the host; each exactly once.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flash
from flash.cache import work
from flash.cache.work import CachedWork
from flash.problem.rotary import rotary_tables

ATTENDS, APPENDS, HOST = "the attending kernel", "the appending kernel", "the host"


class Watched(CachedWork):
    """A work whose parts say what they would do."""

    did: list[Any]

    def __init__(self, task: Any) -> None:
        self.did = []
        super().__init__(task)

    def _stream(self) -> int:
        return 7

    def _room_for_queries(self) -> Any:
        return "room"

    def _prepared_attention(self, new: Any) -> Any:
        queries = self._q
        return lambda stream: self.did.append((ATTENDS, new is not None, queries, stream))

    def _prepared_append(self, new: Any) -> Any:
        assert new is not None
        return lambda stream: self.did.append((APPENDS, stream))

    def _write_rows(self, stream: int) -> None:
        self.did.append((HOST, stream))


def launched(
    monkeypatch: pytest.MonkeyPatch,
    *,
    backend: str,
    queries: int = 2,
    rows: bool = True,
    appends: bool = False,
    turns: bool = False,
    turned_by_kernel: bool = False,
) -> list[Any]:
    """What the launch of a call does, in its order."""
    joining = SimpleNamespace(k="k" if rows else None)
    monkeypatch.setattr(work, "appends_by_kernel", lambda *_: appends)
    monkeypatch.setattr(work, "turns_by_kernel", lambda *_: turned_by_kernel)
    monkeypatch.setattr(work, "joining", lambda *_: joining)
    monkeypatch.setattr(work, "RowLocations", lambda *_, **__: SimpleNamespace(place=lambda _: None))
    memory = SimpleNamespace(device=("cuda", 0) if backend == "cuda" else ("cpu", 0))
    ledger = SimpleNamespace(of=lambda *_: [9, 9])

    class Query(SimpleNamespace):
        def _replace(self, **_: Any) -> Query:
            return self

        def __eq__(self, other: object) -> bool:
            return other == "q" or self is other

        __hash__ = None  # type: ignore[assignment]

    task = SimpleNamespace(
        views={"q": Query()},
        cache=SimpleNamespace(memory=memory, ledger=ledger),
        backend=backend,
        sequences=[0, 1],
        layer=0,
        padding=[0, 0],
        is_repeated=False,
        out=SimpleNamespace(shape=(2, 4, queries, 8)),
        turns=turns,
        interleaved=False,
        new_rows=1 if rows else 0,
        who="attention_with_kvcache",
    )
    found = Watched(task)
    found.launch()
    return found.did


@pytest.mark.parametrize(
    ("how", "does"),
    [
        ({"backend": "cpu"}, [(HOST, 7), (ATTENDS, False, "q", 7)]),
        ({"backend": "cpu", "turns": True}, [(HOST, 7), (ATTENDS, False, "room", 7)]),
        ({"backend": "cpu", "queries": 0}, [(HOST, 7)]),
        ({"backend": "interpreter", "appends": True}, [(ATTENDS, True, "q", 7)]),
        ({"backend": "interpreter", "appends": True, "turns": True}, [(ATTENDS, True, "q", 7)]),
        ({"backend": "interpreter", "appends": True, "queries": 0}, [(HOST, 7)]),
        ({"backend": "interpreter"}, [(HOST, 7), (ATTENDS, False, "q", 7)]),
        ({"backend": "cuda", "appends": True}, [(ATTENDS, True, "q", 7)]),
        ({"backend": "cuda", "appends": True, "queries": 0}, [(APPENDS, 7)]),
        ({"backend": "cuda", "appends": True, "turns": True, "queries": 0}, [(APPENDS, 7)]),
        ({"backend": "cuda"}, [(HOST, 7), (ATTENDS, False, "q", 7)]),
        (
            {"backend": "cuda", "rows": False, "turns": True, "turned_by_kernel": True},
            [(ATTENDS, True, "q", 7)],
        ),
        ({"backend": "cuda", "rows": False, "turns": True, "turned_by_kernel": True, "queries": 0}, []),
        ({"backend": "cuda", "rows": False}, [(HOST, 7), (ATTENDS, False, "q", 7)]),
    ],
)  # fmt: skip
def test_new_rows_are_written_once_by_whom_can(
    how: dict[str, Any], does: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launched(monkeypatch, **how) == does


def rotated_alone(backend: Any) -> Any:
    """A call without queries that appends rotated rows, and the rows in the cache."""
    cache = flash.KVCache(1, 2, 2, 16, 8)
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((2, 2, 3, 16), dtype=np.float32) for _ in range(2))
    cos, sin = rotary_tables(8, 16)
    q = np.zeros((2, 4, 0, 16), np.float32)
    flash.attention_with_kvcache(q, cache, k, v, rotary_cos=cos, rotary_sin=sin, layer=0, backend=backend)
    return cache.keys(0, 1)


def test_rows_without_queries_are_rotated_alike_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = []
    fill = flash.KVCache.fill
    monkeypatch.setattr(flash.KVCache, "fill", lambda *a: (filled.append(1), fill(*a))[1])
    np.testing.assert_array_equal(rotated_alone("interpreter"), rotated_alone("cpu"))
    assert filled == [1, 1]
