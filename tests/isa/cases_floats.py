"""Floating-point rows: meanings for `cases.py`, by syntax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MEANING: dict[str, Callable[..., Any]] = {}
MEMORY: dict[str, Callable[..., Any]] = {}
WARP: dict[str, Callable[..., Any]] = {}
CALLS: dict[str, list[tuple[Any, ...]]] = {}
IMMEDIATES: dict[str, tuple[int, ...]] = {}
