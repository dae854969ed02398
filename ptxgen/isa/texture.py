"""Textures and surfaces by handle (PTX ISA, "Texture Instructions", "Surface Instructions").

A handle names a `ptxgen.texture.Texture` or `Surface`. Coordinates are those of the manual: the
layer first, if there are layers, then x, y, z and what fills them up to 1, 2 or 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.declare import inst
from ptxgen.isa.families import member
from ptxgen.isa.spec import Effect
from ptxgen.types import ScalarType, b8, b16, b32, b64, f32, s32, u32

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxgen.isa.machine import Lanes, Machine

TEXTURES: Final = "Texture Instructions"
SURFACES: Final = "Surface Instructions"

# By geometry: how many coordinates are printed, and their types, the last of which is repeated.
_COORDINATES: Final = {
    "1d": (1, "ctype"), "2d": (2, "ctype"), "3d": (4, "ctype"), "a1d": (2, "u32.ctype"),
    "a2d": (4, "u32.ctype"), "cube": (4, "f32"), "acube": (4, "u32.f32"),
}  # fmt: skip
_GRADIENT: Final = {"1d": 1, "2d": 2, "3d": 4, "a1d": 1, "a2d": 2, "cube": 4, "acube": 4}
_OF_SURFACE: Final = {"1d": 1, "2d": 2, "3d": 4, "a1d": 2, "a2d": 4}
_TYPES: Final = (f32, s32, u32)
_COMPONENTS: Final = ("r", "g", "b", "a")
_OUTSIDE: Final = ("trap", "clamp", "zero")
_QUERIES: Final = ("width", "height", "depth", "array_size")


def _fetch(geometry: str) -> Callable[..., Any]:
    """A fetch; without smaller images of itself, a texture has one level of detail."""

    def fetched(machine: Machine, *, type: ScalarType, tex: tuple[Lanes, Any], **_: Any) -> Any:
        return machine.texture_fetch(tex[0], geometry, tex[1], type)

    return fetched


for _geometry, (_count, _along) in _COORDINATES.items():
    _cube = "cube" in _geometry
    _types: dict[str, Any] = {"type": _TYPES} if _cube else {"type": _TYPES, "ctype": (f32, s32)}
    _ctype, _level = ("f32", "f32") if _cube else ("ctype", "ctype")
    _where = f"[tex:u64*{_count}/{_along}]"
    _gate: dict[str, Any] = {"effect": Effect.TEXTURE, "ptx": (4, 0), "sm": 30}
    inst(
        f"tex.{_geometry}.v4.type.{_ctype} d*4, {_where}", name=f"tex_{_geometry}",
        section=f"{TEXTURES}: tex", **_types, **_gate,
    )(
        member(
            _fetch(_geometry), "d = a texture's four channels at coordinates, as its sampler says.",
            ["tex"], ["type"],
        )
    )  # fmt: skip
    inst(
        f"tex.level.{_geometry}.v4.type.{_ctype} d*4, {_where}, lod:{_level}",
        name=f"tex_level_{_geometry}", section=f"{TEXTURES}: tex", **_types, **_gate,
    )(
        member(
            _fetch(_geometry), "d = a texture's four channels at a level of detail, of which "
            "there is one.", ["tex", "lod"], ["type"],
        )
    )  # fmt: skip
    _size = _GRADIENT[_geometry]
    inst(
        f"tex.grad.{_geometry}.v4.type.f32 d*4, [tex:u64*{_count}/{_along.replace('ctype', 'f32')}]"
        f", dx:f32*{_size}, dy:f32*{_size}",
        name=f"tex_grad_{_geometry}", type=_TYPES, section=f"{TEXTURES}: tex", **_gate,
    )(
        member(
            _fetch(_geometry), "d = a texture's four channels at the level of detail that the "
            "gradients ask for, of which there is one.", ["tex", "dx", "dy"], ["type"],
        )
    )  # fmt: skip


def _gather(geometry: str) -> Callable[..., Any]:
    def gathered(machine: Machine, *, comp: str, type: ScalarType, tex: tuple[Lanes, Any]) -> Any:
        component = _COMPONENTS.index(comp)
        return machine.texture_gather(tex[0], geometry, tex[1], component, type)

    return gathered


for _geometry, _where in (("2d", "[tex:u64*2/f32]"), ("a2d", "[tex:u64*4/u32.f32]")):
    inst(
        f"tld4.comp.{_geometry}.v4.type.f32 d*4, {_where}", name=f"tld4_{_geometry}",
        comp=_COMPONENTS, type=_TYPES, effect=Effect.TEXTURE, section=f"{TEXTURES}: tld4",
        ptx=(4, 0), sm=30,
    )(
        member(
            _gather(_geometry), "d = one component of the four texels around the coordinates, "
            "counter-clockwise from the lower left.", ["tex"], ["comp", "type"],
        )
    )  # fmt: skip


@inst(
    "txq.query.b32 d, [addr:u64]", query=(*_QUERIES, "normalized_coords", "num_mipmap_levels"),
    effect=Effect.TEXTURE, section=f"{TEXTURES}: txq", ptx=(4, 1), sm=30,
)  # fmt: skip
def txq(machine: Machine, addr: Lanes, *, query: str) -> Any:
    """d = a property of the texture whose handle is the address."""
    return machine.texture_query(addr, query)


def _load(geometry: str) -> Callable[..., Any]:
    def loaded(
        machine: Machine, *, cop: str | None, vec: str | None, type: ScalarType, mode: str,
        surf: tuple[Lanes, Any],
    ) -> Any:  # fmt: skip
        del cop  # a hint
        count = int(vec[1:]) if vec else 1
        found = machine.surface_load(surf[0], geometry, surf[1], type, count, mode)
        return found if vec or found is None else found[0]

    return loaded


def _store(geometry: str) -> Callable[..., Any]:
    def stored(
        machine: Machine, *, cop: str | None, vec: str | None, type: ScalarType, mode: str,
        surf: tuple[Lanes, Any], a: Any,
    ) -> tuple[()]:  # fmt: skip
        del cop
        values = a if vec else (a,)
        machine.surface_store(surf[0], geometry, surf[1], type, values, mode)
        return ()

    return stored


_CACHED: Final = ("ca", "cg", "cs", "cv")
_WRITTEN: Final = ("wb", "cg", "cs", "wt")
# A surface's element has at most 16 bytes.
_SHAPES: Final = ((("v2", "v4"), (b32, b8, b16)), (("v2",), (b64,)))

for _geometry, _count in _OF_SURFACE.items():
    for _vectors, _types_of in _SHAPES:
        _slots: dict[str, Any] = {"vec": _vectors, "type": _types_of, "mode": _OUTSIDE}
        _rest: dict[str, Any] = {"effect": Effect.TEXTURE, "ptx": (4, 0), "sm": 30}
        inst(
            f"suld.b.{_geometry}{{.cop}}{{.vec}}.type.mode d*vec, [surf:u64*{_count}/s32]",
            name=f"suld_{_geometry}", cop=_CACHED, section=f"{SURFACES}: suld", **_slots, **_rest,
        )(
            member(
                _load(_geometry),
                "d = what the surface has at the coordinates, x in bytes; outside of it, the "
                "kernel stops, the nearest element counts, or d = 0.",
                ["surf"], ["cop", "vec", "type", "mode"],
            )
        )  # fmt: skip
        inst(
            f"sust.b.{_geometry}{{.cop}}{{.vec}}.type.mode [surf:u64*{_count}/s32], a*vec",
            name=f"sust_{_geometry}", cop=_WRITTEN, section=f"{SURFACES}: sust", **_slots, **_rest,
        )(
            member(
                _store(_geometry),
                "Write a to the surface at the coordinates, x in bytes; outside of it, the kernel "
                "stops, the nearest element counts, or nothing is written.",
                ["surf", "a"], ["cop", "vec", "type", "mode"],
            )
        )  # fmt: skip


@inst(
    "suq.query.b32 d, [addr:u64]", query=_QUERIES, effect=Effect.TEXTURE,
    section=f"{SURFACES}: suq", ptx=(4, 1), sm=30,
)  # fmt: skip
def suq(machine: Machine, addr: Lanes, *, query: str) -> Any:
    """d = a property of the surface whose handle is the address."""
    return machine.texture_query(addr, query)
