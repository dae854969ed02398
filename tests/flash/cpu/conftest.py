"""Blocks of scores that the tests of this folder make smaller."""

from __future__ import annotations

import pytest

from flash.cpu import gradients, job


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that a small problem has many."""
    for module in (job, gradients):
        monkeypatch.setattr(module, "BLOCK_Q", 16)
        monkeypatch.setattr(module, "BLOCK_K", 24)
