"""Defines `Family`: a family of kernels, such as those with `wgmma`, as an object."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from flash.families.request import TileRequest
from flash.operands.dtypes import DType
from ptxgen import ir
from ptxgen.target import Target

# Bytes of memory in a second of an A100 (NVIDIA A100 Tensor Core GPU Architecture, "Performance"): later GPUs
# have as many operations for a byte, or fewer, but for `wgmma`.
_BANDWIDTH: Final = 1.555e12
Campaign = Mapping[str, Mapping[str, Any]]  # settings of kernels that a campaign mutates, by their names
# Every (tile, block_q) that a request may have, whatever sizes it gives.
Offered = Callable[[TileRequest], list[tuple[int, int]]]


class Shape(Protocol):
    """The properties of a tiling, such as its shared memory, by which one is chosen."""

    @property
    def shared_bytes(self) -> int:
        """The dynamic shared memory of a CTA, in bytes."""


T = TypeVar("T", bound=Shape)


class Family(ABC, Generic[T]):
    """Kernels that share an emitter and a class of tilings, `T`.

    A subclass has what the choice of a kernel, a launch, `explain` and the tools ask of these kernels;
    questions about the sizes of a kernel are its tiling's.
    """

    name: ClassVar[str]
    entry: ClassVar[str] = ""  # what the names of its kernels begin with, before the type
    products: ClassVar[str]  # its instruction, for `explain`
    multiplies: ClassVar[str]  # what it multiplies, for messages about what it does not
    tiling: type[T]
    # "module:function", which makes a module of a config and its tiling. It is named and not imported,
    # because a process that emits a kernel does not need the other families.
    emitter: ClassVar[str]
    dtypes: ClassVar[tuple[DType, ...]]
    tile_sizes: ClassVar[tuple[int, ...]]  # the keys that a tile may have
    blocks_q: ClassVar[tuple[int, ...]]  # the sizes that block_q may have
    target: ClassVar[str | None] = None  # the only target that its kernels are for; None: all
    values_in_keys: ClassVar[bool] = False  # whether V is read as columns of the tile of K
    mapped: ClassVar[str] = ""  # the arrays that tensor copies move
    gathers: ClassVar[bool] = False  # whether threads may copy rows from pages that no tensor copy takes
    # Why a CTA takes one block of queries and no more; empty if it may take several.
    why_one_block: ClassVar[str] = (
        "CTAs take several blocks only with wgmma of f16 and bf16 and head_dim up to 256"
    )
    why_no_planes: ClassVar[str] = ""  # the same of CTAs with an array that has an element for each score
    rate: ClassVar[float]  # of operations; see `operations`
    bandwidth: ClassVar[float] = _BANDWIDTH  # bytes of memory in a second, by which merging is rated
    # Problems that no other family computes, by what they are called: settings of a config. Tools emit, time
    # and count kernels for them besides those that all families compute.
    workloads: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    shared_kv_words: ClassVar[str] = ""  # what the documentation of `shared_kv` says of these
    # Kernels of the campaign of mutations by name (`tools/campaign/kernels.py`), and courses of scores along
    # the keys that only its softmax tells apart.
    campaign: ClassVar[Campaign] = {}
    score_courses: ClassVar[tuple[str, ...]] = ()

    @property
    def instruction(self) -> str:
        """The instruction by which the family multiplies matrices: the first word of its name."""
        return self.name.partition(" ")[0]

    @abstractmethod
    def computes(self, request: TileRequest) -> bool:
        """Whether the family is for the types and rows of a request, for some sizes and targets."""

    def is_for(self, target: Target) -> bool:
        """Whether the family's kernels are for a target and few others; False if they are for all."""
        return self.target == target.name

    @abstractmethod
    def against(self, request: TileRequest, target: Target, alignment: int) -> str:
        """Why no kernel of the family takes a request that it `computes` on a target, for arrays aligned to
        `alignment` bytes; the empty string if one does.
        """

    def why_not(self, request: TileRequest, target: Target, alignment: int | None = None) -> str:
        """Why no kernel of the family takes a request on a target, for arrays aligned to `alignment` bytes
        (None: as contiguous arrays are); the empty string if one does.
        """
        if not self.computes(request):
            return self.multiplies
        return self.against(request, target, request.alignment if alignment is None else alignment)

    @abstractmethod
    def tilings(self, request: TileRequest, target: Target, alignment: int) -> Iterable[T]:
        """The tilings of a request that fit the registers, the best first. `alignment` is in bytes."""

    def tiles(self, request: TileRequest) -> tuple[int, ...]:  # noqa: ARG002
        """The numbers of keys that a tile may have in kernels of this family, in order."""
        return self.tile_sizes

    def refusal(self, request: TileRequest, target: Target, alignment: int | None, offered: Offered) -> str:  # noqa: ARG002
        """The text of an error for a request that no family takes, this one being the last: why, and what to
        request instead where the family knows that.
        """
        return self.why_not(request, target, alignment)

    def operations(self, t: T) -> float:  # noqa: ARG002
        """Operations of matrix products in a second, by which the cost of merging is estimated: those of an
        A100 or, with `wgmma`, of an H100.
        """
        return self.rate

    def tiling_for(self, request: TileRequest, target: Target, alignment: int | None = None) -> T | None:
        """The best tiling of a request that fits shared memory and registers; None if none does."""
        aligned = request.alignment if alignment is None else alignment
        tilings = self.tilings(request, target, aligned)
        return next((t for t in tilings if t.shared_bytes <= target.shared_per_block_optin), None)

    def sizes(self, request: TileRequest) -> Iterable[tuple[int, int]]:
        """Every (tile, block_q) that a kernel may have where it fits."""
        return product(self.tiles(request), self.blocks_q)

    def emit(self, config: Any) -> ir.Module:
        """The module of a `KernelConfig` with a tiling of this family; not verified."""
        module, _, function = self.emitter.partition(":")
        emitted: ir.Module = getattr(importlib.import_module(module), function)(config, config.tiling)
        return emitted

    def require(self, tiling: object) -> T:
        """The argument as a tiling of this family. Raises `TypeError` for a tiling of another family."""
        if not isinstance(tiling, self.tiling):
            raise TypeError(f"a tiling of {self.name} is wanted, got {type(tiling).__name__}")
        return tiling

    def explained(self, t: T) -> str:  # noqa: ARG002
        """The words of `explain` about how a kernel multiplies and where tiles come from."""
        return self.products

    def by_rows(self, t: T) -> T:
        """The tiling of these sizes in whose kernel no bits of a row depend on other rows of its warp
        (`flash/problem/row_bits.py`).
        """
        return t

    def why_no_tickets(self, t: T, *, varlen: bool) -> str:  # noqa: ARG002
        """Why CTAs that may take several blocks take none from a counter; the empty string if they do.
        `varlen` is whether sequences are packed.
        """
        return ""

    def persistent(self, t: T, target: Target) -> T:  # noqa: ARG002
        """The tiling of these sizes for a kernel whose CTAs take several blocks of queries."""
        return t

    def chained_keys(self, t: T, asked: int | None) -> int | None:  # noqa: ARG002
        """The most keys whose products one sum on a tensor core takes, in kernels whose tiles have `asked`
        keys, or with None any number; None if a tile of that size decides it.
        """
        return asked
