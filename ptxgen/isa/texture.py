"""Textures and surfaces by handle (PTX ISA, "Texture Instructions", "Surface Instructions").

A handle stands for a `ptxgen.texture.Texture` or `Surface`. Coordinates are those of the manual:
the layer first, if there are layers, then x, y, z, padded to 1, 2 or 4 coordinates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ptxgen.isa.declare import each, inst
from ptxgen.isa.spec import Effect
from ptxgen.types import ScalarType, b8, b16, b32, b64, f32, s32, u32

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

TEXTURES: Final = "Texture Instructions"
SURFACES: Final = "Surface Instructions"

_TYPES: Final = (f32, s32, u32)
_COMPONENTS: Final = ("r", "g", "b", "a")
_QUERIES: Final = ("width", "height", "depth", "array_size")
_CHOICE: Final = (f32, s32)
# The number of coordinates, the type of the first if it is a layer, the type of the others, and the
# size of each of the two gradients.
_GEOMETRIES: Final = each(
    "geometry count layer ctype size",
    ("1d", 1, "", _CHOICE, 1),
    ("2d", 2, "", _CHOICE, 2),
    ("3d", 4, "", _CHOICE, 4),
    ("a1d", 2, "u32.", _CHOICE, 1),
    ("a2d", 4, "u32.", _CHOICE, 2),
    ("cube", 4, "", f32, 4),
    ("acube", 4, "u32.", f32, 4),
)
_TEXTURE: Final[dict[str, Any]] = {"effect": Effect.TEXTURE, "ptx": (4, 0), "sm": 30}


@inst(
    "<head>.<geometry>.v4.type.<ctype> d*4, [tex:u64*<count>/<layer><ctype>]<operands>",
    _GEOMETRIES,
    each(
        "name head operands where",
        ("tex_<geometry>", "tex", "", "coordinates, filtered by its sampler"),
        ("tex_level_<geometry>", "tex.level", ", lod:<ctype>", "a level of detail; there is only one"),
    )
    + each(
        "name head ctype operands where",
        (
            "tex_grad_<geometry>",
            "tex.grad",
            f32,
            ", dx:f32*<size>, dy:f32*<size>",
            "the level of detail that the gradients select; there is only one",
        ),
    ),
    type=_TYPES,
    ignores=("lod", "dx", "dy"),
    section=f"{TEXTURES}: tex",
    **_TEXTURE,
)
def tex(machine: Machine, tex: tuple[Lanes, Any], *, geometry: str, type: ScalarType) -> Any:
    """d = a texture's four channels at <where>."""
    # A texture without mipmaps has one level of detail.
    return machine.texture_fetch(tex[0], geometry, tex[1], type)


@inst(
    "tld4.comp.<geometry>.v4.type.f32 d*4, [tex:u64*<coordinates>]",
    each("geometry coordinates", ("2d", "2/f32"), ("a2d", "4/u32.f32")),
    name="tld4_<geometry>",
    comp=_COMPONENTS,
    type=_TYPES,
    section=f"{TEXTURES}: tld4",
    **_TEXTURE,
)
def tld4(machine: Machine, tex: tuple[Lanes, Any], *, comp: str, geometry: str, type: ScalarType) -> Any:
    """d = one component of the four texels around the coordinates, counter-clockwise from the lower
    left.
    """
    return machine.texture_gather(tex[0], geometry, tex[1], _COMPONENTS.index(comp), type)


@inst(
    "txq.query.b32 d, [addr:u64]",
    query=(*_QUERIES, "normalized_coords", "num_mipmap_levels"),
    effect=Effect.TEXTURE,
    section=f"{TEXTURES}: txq",
    ptx=(4, 1),
    sm=30,
)
def txq(machine: Machine, addr: Lanes, *, query: str) -> Any:
    """d = a property of the texture whose handle is the address."""
    return machine.texture_query(addr, query)


@inst(
    "<head>.b.<geometry>{.cop}{.vec}.type.mode <result>[surf:u64*<count>/s32]<operand>",
    each("geometry count", ("1d", 1), ("2d", 2), ("3d", 4), ("a1d", 2), ("a2d", 4)),
    each("vec type", (("v2", "v4"), (b32, b8, b16)), (("v2",), (b64,))),  # at most 16 bytes
    each(
        "head cop result operand does otherwise",
        ("suld", ("ca", "cg", "cs", "cv"), "d*vec, ", "", "d = the elements of the surface", "d = 0"),
        ("sust", ("wb", "cg", "cs", "wt"), "", ", a*vec", "Write a to the surface", "nothing is written"),
    ),
    name="<head>_<geometry>",
    mode=("trap", "clamp", "zero"),
    ignores=("cop",),
    section=f"{SURFACES}: <head>",
    **_TEXTURE,
)
def surface(
    machine: Machine,
    surf: tuple[Lanes, Any],
    a: Any = None,
    *,
    geometry: str,
    vec: str | None,
    type: ScalarType,
    mode: str,
) -> Any:
    """<does> at the coordinates, x in bytes; outside the surface, .trap stops the kernel, .clamp takes
    the nearest element, and with .zero <otherwise>.
    """
    if a is not None:
        machine.surface_store(surf[0], geometry, surf[1], type, a if vec else (a,), mode)
        return ()
    count = int(vec[1:]) if vec else 1
    loaded = machine.surface_load(surf[0], geometry, surf[1], type, count, mode)
    return loaded if vec or loaded is None else loaded[0]


@inst(
    "suq.query.b32 d, [addr:u64]",
    query=_QUERIES,
    effect=Effect.TEXTURE,
    section=f"{SURFACES}: suq",
    ptx=(4, 1),
    sm=30,
)
def suq(machine: Machine, addr: Lanes, *, query: str) -> Any:
    """d = a property of the surface whose handle is the address."""
    return machine.texture_query(addr, query)
