"""Texture and surface rows: what each asks the machine for, by syntax.

What the machine answers is tested in `tests/test_texture.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MEANING: dict[str, Callable[..., Any]] = {}
MEMORY: dict[str, Callable[..., Any]] = {}
WARP: dict[str, Callable[..., Any]] = {}
IMMEDIATES: dict[str, tuple[int, ...]] = {}

# The coordinates of each geometry as the manual prints them, and the types of those of surfaces.
PLACES = {
    "1d": "[tex:u64*1/ctype]",
    "2d": "[tex:u64*2/ctype]",
    "3d": "[tex:u64*4/ctype]",
    "a1d": "[tex:u64*2/u32.ctype]",
    "a2d": "[tex:u64*4/u32.ctype]",
    "cube": "[tex:u64*4/f32]",
    "acube": "[tex:u64*4/u32.f32]",
}
SURFACES = {"1d": 1, "2d": 2, "3d": 4, "a1d": 2, "a2d": 4}
GRADIENTS = {"1d": 1, "2d": 2, "3d": 4, "a1d": 1, "a2d": 2, "cube": 4, "acube": 4}


def handle(names: dict[str, Any]) -> Any:
    return names.get("tex", names.get("surf"))[0]


def coordinates(names: dict[str, Any]) -> Any:
    return names.get("tex", names.get("surf"))[1]


def component(names: dict[str, Any]) -> Any:
    return "rgba".index(names["comp"])


def count(names: dict[str, Any]) -> Any:
    return {None: 1, "v2": 2, "v4": 4}[names["vec"]]


def values(names: dict[str, Any]) -> Any:
    return names["a"] if names["vec"] else (names["a"],)


def calls() -> dict[str, list[tuple[Any, ...]]]:
    result: dict[str, list[tuple[Any, ...]]] = {}
    for geometry, location in PLACES.items():
        type = "f32" if "cube" in geometry else "ctype"
        fetch = [("texture_fetch", handle, f"={geometry}", coordinates, "type")]
        slope = f"dx:f32*{GRADIENTS[geometry]}, dy:f32*{GRADIENTS[geometry]}"
        with_f32 = location.replace("ctype", "f32")
        result |= {
            f"tex.{geometry}.v4.type.{type} d*4, {location}": fetch,
            f"tex.level.{geometry}.v4.type.{type} d*4, {location}, lod:{type}": fetch,
            f"tex.grad.{geometry}.v4.type.f32 d*4, {with_f32}, {slope}": fetch,
        }
    for geometry in ("2d", "a2d"):
        location = PLACES[geometry].replace("ctype", "f32")
        result[f"tld4.comp.{geometry}.v4.type.f32 d*4, {location}"] = [
            ("texture_gather", handle, f"={geometry}", coordinates, component, "type")
        ]
    for geometry, size in SURFACES.items():
        location = f"[surf:u64*{size}/s32]"
        common = handle, f"={geometry}", coordinates, "type"
        result[f"suld.b.{geometry}{{.cop}}{{.vec}}.type.mode d*vec, {location}"] = [
            ("surface_load", *common, count, "mode")
        ]
        result[f"sust.b.{geometry}{{.cop}}{{.vec}}.type.mode {location}, a*vec"] = [
            ("surface_store", *common, values, "mode")
        ]
    for instruction in ("txq", "suq"):
        result[f"{instruction}.query.b32 d, [addr:u64]"] = [("texture_query", "addr", "query")]
    return result


CALLS = calls()
