"""A kernel function that is built for one target and one choice of its static parameters."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ptxgen import ir
from ptxgen.arguments import integer
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract, Size
from ptxgen.check.resources import Resources, resources
from ptxgen.check.verify.budget import static_shared_bytes
from ptxgen.contract import SCHEMA
from ptxgen.dsl import PointerType
from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.fragments import fragment
from ptxgen.kernels.access_modes import Uses, uses_of
from ptxgen.kernels.signature import Signature, Type
from ptxgen.kernels.tensor_maps import described_array
from ptxgen.runtime.attributes import LaunchAttributes
from ptxgen.runtime.bounded_cache import BoundedCache
from ptxgen.runtime.plan import ParamSlot, param_slots
from ptxgen.runtime.proof_cache import Obligation, proof_cache
from ptxgen.target import Target
from ptxgen.tensormap import Boxes, TensorMapType
from ptxgen.text import render
from ptxgen.types import ScalarType, bf16, f16

if TYPE_CHECKING:
    from ptxgen.check.prove import Proofs

GRID: Final = "grid"  # the name of the number of CTAs along x, in expressions of a proof
_MOST_DIMENSIONS: Final = 3
_AS_BITS: Final = (f16, bf16)  # a parameter has the bits of such a number
_STEPS: Final = 20_000  # of the proof before a launch: a fraction of a second
_PAIR: Final = 2
# Bytes to which cudaMalloc aligns (CUDA C++ Programming Guide, "Device Memory Accesses").
_MOST_ALIGN: Final = 256
_MOST_CTAS: Final = (1 << 31) - 1  # along x; CUDA C++ Programming Guide, "Technical Specifications"


class BuiltFunction:
    """A verified kernel, for CTAs of `block` threads along x, y and z. `maps` are the boxes that it fixes for
    its tensor maps, `attributes` the attributes of its launches.
    """

    def __init__(
        self,
        signature: Signature,
        module: ir.Module,
        target: Target,
        block: tuple[int, int, int],
        maps: Mapping[str, Boxes],
        attributes: LaunchAttributes,
    ) -> None:
        self.signature = signature
        self.module = module
        self.target = target
        self.block = block
        self.threads = math.prod(block)
        self.maps = maps
        self.attributes = attributes
        self._refutations = BoundedCache[tuple[tuple[str, int], ...], tuple[str, ...]]()

    def __repr__(self) -> str:
        return f"BuiltFunction({self.kernel.name}, {self.target.name}, {self.threads} threads)"

    def _repr_html_(self) -> str:
        """The kernel's parameters, resources and PTX as HTML, which a notebook shows."""
        needs, declared = self.resources, self.signature.parameters.items()
        return fragment(
            f"kernel {self.kernel.name}({', '.join(f'{name}: {type}' for name, type in declared)})",
            rows=[
                ("target", self.target.name),
                ("threads of a CTA", self.threads),
                ("live registers", needs.live_registers),
                ("shared memory, bytes", needs.shared_total),
                ("barriers", needs.barriers),
                ("instructions", sum(count for _, count in needs.mix)),
            ],
            texts=[(f"PTX, {len(self.text.splitlines()):,} lines", self.text, False)],
        )

    @property
    def kernel(self) -> ir.Kernel:
        """The kernel as data (`ptxgen.ir.Kernel`): the one kernel of the module."""
        return self.module.kernels[0]

    @cached_property
    def text(self) -> str:
        """The PTX text of the kernel's module."""
        return render(self.module)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the PTX, 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def slots(self) -> tuple[ParamSlot, ...]:
        """The offset, size and type of each of the kernel's parameters."""
        return param_slots(self.kernel.params)

    @cached_property
    def uses(self) -> Uses:
        """How the kernel uses arrays: which pointer parameters it reads and writes through."""
        types = self.signature.parameters
        arrays = [n for n, type in types.items() if isinstance(type, PointerType | TensorMapType)]
        return uses_of(self.kernel, arrays)

    def alignment(self, name: str, dtype: ScalarType) -> int:
        """The bytes of which the address of array `name`, with elements of `dtype`, must be a multiple."""
        return self.uses.alignment.get(name, dtype.nbytes)

    @cached_property
    def resources(self) -> Resources:
        """The registers, shared memory and threads that a CTA needs, estimated from the instructions."""
        return resources(self.kernel, self.target)

    def refutations(self, numbers: tuple[tuple[str, int], ...] = ()) -> tuple[str, ...]:
        """The violations in the proof of shared memory and barriers, for all launches or for those with these
        numbers as parameters; none if the proof does not end within its limit of steps.
        """
        refutations = self._refutations.get(numbers)
        if refutations is None:
            maps = {name: boxes.smallest() for name, boxes in self.maps.items()}
            known: dict[str, Any] = {**maps, **dict(numbers)}
            obligation = Obligation(self.module, self.text, self.block, params=known, steps=_STEPS)
            refutations = self._refutations.keep(numbers, _refuted(obligation, is_stored=not numbers))
        return refutations

    def prove(
        self,
        arrays: Mapping[str, tuple[int | str, ...]],
        bounds: Mapping[str, tuple[int, int]],
        grid: Size | tuple[Size, ...],
        align: int | None = None,
    ) -> Proofs:
        """The proofs of all accesses to memory and of the barriers, for every launch in which the
        arrays are dense and have these dimensions (`KernelFunction.prove` says more).
        """
        contract = self._contract(arrays, bounds, grid, align)
        maps = {name: boxes.smallest() for name, boxes in self.maps.items()}
        return proof_cache().proofs(Obligation(self.module, self.text, self.block, contract, maps))

    def _contract(
        self,
        arrays: Mapping[str, tuple[int | str, ...]],
        bounds: Mapping[str, tuple[int, int]],
        grid: Size | tuple[Size, ...],
        align: int | None,
    ) -> GlobalContract:
        caller, types = f"{self.signature.name}.prove", self.signature.parameters
        pointers = {
            name: type for name, type in types.items() if isinstance(type, PointerType | TensorMapType)
        }
        for name in arrays:
            if name not in pointers:
                raise LaunchError(f"{caller}: {name} is no array of the kernel{did_you_mean(name, pointers)}")
        missing = [name for name in pointers if name not in arrays]
        if missing:
            raise LaunchError(
                f"{caller}: the dimensions of {' and '.join(missing)} must be given, such as "
                f"{missing[0]}=('n',)"
            )
        known = {GRID: (1, _MOST_CTAS)} | {
            name: _range(type)
            for name, type in types.items()
            if isinstance(type, ScalarType) and type.is_integer
        }
        for name in self.maps:
            rank = len(self.maps[name].box)
            if not isinstance(arrays[name], tuple) or len(arrays[name]) != rank:
                raise LaunchError(
                    f"{caller}: {name} must be a tuple of {rank} dimensions ({types[name]}), got "
                    f"{shown(arrays[name])}"
                )
        if align is not None and (integer(align, 1, _MOST_ALIGN) is None or align & (align - 1)):
            raise LaunchError(
                f"{caller}: align must be a power of two up to {_MOST_ALIGN} (bytes), got {shown(align)}"
            )
        dense = tuple(
            [self._array(caller, name, pointers[name].dtype, arrays[name], align) for name in arrays]
        )
        blocks = _grid(caller, grid)
        sizes = [size for array in dense for size in (array.nbytes, *(axis.extent for axis in array.axes))]
        _check_bounds(caller, bounds, {*known, *_names_in((*sizes, *blocks))})
        equal = {} if blocks[0] == GRID else {GRID: blocks[0]}
        return GlobalContract(dense, (), {**known, **bounds}, blocks, equal)

    def _array(self, caller: str, name: str, dtype: ScalarType, shape: Any, align: int | None) -> GlobalArray:
        """A dense array, outermost dimension first; its rows are the elements of the proof. It and its
        rows begin at multiples of `align` bytes, if that is given.
        """
        *outer, columns = dims = _dims(caller, name, shape)
        nbytes = dtype.nbytes
        axes = tuple([Axis(extent, _spanned(nbytes, dims[n + 1 :])) for n, extent in enumerate(outer)])
        if align is None:
            align = self.alignment(name, dtype)
            if axes:  # the alignment of rows, as far as it is known
                align = math.gcd(align, nbytes * (1 if isinstance(columns, str) else columns))
        return GlobalArray(name, axes, _spanned(nbytes, (columns,)), align)

    def _required(self, name: str) -> dict[str, int]:
        """The key `align` of a contract for a pointer that must be aligned to more than its elements; else
        empty.
        """
        nbytes = self.uses.alignment.get(name, 1)
        type = self.signature.parameters[name]
        return {"align": nbytes} if isinstance(type, PointerType) and nbytes > type.dtype.nbytes else {}

    def _tensor_map(self, name: str) -> dict[str, Any]:
        """The key `tensor_map` of a contract with the arguments to encode for a tensor map; else empty."""
        return {"tensor_map": described_array(name, self.maps[name])} if name in self.maps else {}

    def contract(self) -> dict[str, Any]:
        """The launch contract for host programs in any language, as plain data for JSON:
        the entry, the argument block, the block and the shared memory. Sizes and offsets are in
        bytes.
        """
        kernel, types = self.kernel, self.signature.parameters
        return {
            "schema": SCHEMA,
            "kind": "kernel",
            "entry": kernel.name,
            "target": self.target.name,
            "ptx_version": ".".join(str(part) for part in self.module.version),
            "sha256": self.sha256,
            "parameters": [
                {
                    "name": slot.name,
                    **_kind(types[slot.name]),
                    "type": slot.type,
                    "offset": slot.offset,
                    "size": slot.nbytes,
                    "meaning": _meaning(types[slot.name]),
                    **self._required(slot.name),
                    **self._tensor_map(slot.name),
                }
                for slot in self.slots
            ],
            "block": list(self.block),
            "cluster": list(self.attributes.cluster),
            "cooperative": self.attributes.cooperative,
            "programmatic": self.attributes.programmatic,
            "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
            "static_shared_bytes": static_shared_bytes(kernel),
        }


def _refuted(obligation: Obligation, is_stored: bool) -> tuple[str, ...]:
    """The problems and violations that a proof of shared memory has, which the cache on disk may have if it
    `is_stored`.
    """
    cache = proof_cache()
    if is_stored and cache.has(obligation):
        return ()
    proof = (cache.proofs(obligation) if is_stored else obligation.prove()).shared
    return tuple(map(str, (*proof.problems, *proof.violations)))


def _names_in(expressions: Iterable[Size]) -> set[str]:
    """The names of sizes that expressions, such as dimensions of arrays, use."""
    return {name for text in expressions for name in re.findall(r"[A-Za-z_]\w*", str(text))}


def _check_bounds(caller: str, bounds: Any, names: Collection[str]) -> None:
    """Raise `LaunchError` for invalid bounds, or for bounds of a name that is no size."""
    for name, value in bounds.items():
        if name not in names:
            raise LaunchError(
                f"{caller}: bounds has {name!r}, which is no size{did_you_mean(name, sorted(names))}"
            )
        pair = value if isinstance(value, tuple) else ()
        low, high = (integer(n, -(1 << 63), 1 << 63) for n in pair) if len(pair) == _PAIR else (None, None)
        if low is None or high is None or low > high:
            raise LaunchError(
                f"{caller}: bounds of {name} must be two integers, the lowest and the highest value, got "
                f"{shown(value)}"
            )


def _grid(caller: str, grid: Any) -> tuple[Size, Size, Size]:
    """The CTAs of a grid along x, y and z. Raises `LaunchError` for an invalid grid."""
    extents = grid if isinstance(grid, tuple | list) else (grid,)
    if not 1 <= len(extents) <= _MOST_DIMENSIONS or not all(map(_is_size, extents)):
        raise LaunchError(
            f"{caller}: grid must be 1 to 3 integers or expressions of sizes, such as '(n + 127) // 128', "
            f"got {shown(grid)}"
        )
    x, y, z = (*extents, 1, 1)[:_MOST_DIMENSIONS]
    return x, y, z


def _kind(type: Type) -> dict[str, str]:
    """The kind of a parameter of this type in a contract, and the element type of an array."""
    if isinstance(type, TensorMapType):
        return {"kind": "tensor_map"}
    return (
        {"kind": "pointer", "element": type.dtype.name}
        if isinstance(type, PointerType)
        else {"kind": "number"}
    )


def _meaning(type: Type) -> str:
    if isinstance(type, TensorMapType):
        return f"CUtensorMap of an array of {type.dtype.name} elements with {type.rank} dimensions, by value"
    if isinstance(type, PointerType):
        return f"device address of dense {type.dtype.name} elements"
    number = f"a number of type {type.name}"
    return f"the bits of {number}" if type in _AS_BITS else number


def _range(type: ScalarType) -> tuple[int, int]:
    """The default range of a size of this type: from 1 to the largest s32 value, so that a loop counter of
    u32 does not wrap.
    """
    bits = type.bits - 1 if type.is_signed else type.bits
    return 1, (1 << min(bits, 31)) - 1


def _is_size(size: object) -> bool:
    return isinstance(size, str) or integer(size, 1, 1 << 62) is not None


def _dims(caller: str, name: str, dims: Any) -> tuple[int | str, ...]:
    """The dimensions of an array. Raises `LaunchError` for dimensions that are no integers or expressions."""
    if not isinstance(dims, tuple) or not dims or not all(map(_is_size, dims)):
        raise LaunchError(
            f"{caller}: {name} must be a tuple of dimensions, integers or expressions of sizes such as "
            f"('rows', 'columns'), got {shown(dims)}"
        )
    for extent in dims[1:]:
        if re.search(r"[-+/]", str(extent)):
            raise LaunchError(
                f"{caller}: {name}: a dimension after the first must be a size, a number or a product, got "
                f"{shown(extent)}; give the sum a name of its own in bounds="
            )
    return dims


def _spanned(nbytes: int, dims: tuple[int | str, ...]) -> str:
    """The bytes of a dense array of these dimensions, an expression."""
    return " * ".join([str(nbytes), *(f"({extent})" for extent in dims)])
