"""torch.func.vmap of the operators: the mapped axis becomes part of the batch, and of packed
sequences part of the heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from torch import Tensor

from flash.adapters.torch.functions import trace_of
from flash.adapters.torch.settings import SEED, Schema
from flash.adapters.torch.tensors import dense_rows, tracked
from flash.mods.record import MASK_MOD, SCORE_MOD
from flash.problem.outputs import LSE, OUTPUTS, Output
from flash.scores.features import DIFFERENTIABLE, SCORES
from ptxgen.errors import LaunchError

MATRICES: Final = ("q", "k", "v")
WITH_GRADIENTS: Final = (*MATRICES, *DIFFERENTIABLE)  # tensors, in the order of an operator's gradients
_AXES: Final = {feature.argument: len(feature.axes) for feature in SCORES if feature.axes}
_FOUR: Final = 4  # dimensions of q with a batch


@dataclass(frozen=True)
class Dense:
    """Arguments of `attention`, mapped over: `rank` is the number of dimensions of q without the
    mapped axis, `batch` the batch size, 1 for three dimensions, `size` the length of the mapped
    axis. `index` names the argument of a function of scores that the mapped axis becomes a part of.
    """

    index: ClassVar = "batch"
    size: int
    rank: int
    batch: int

    @classmethod
    def of(cls, size: int, q: Tensor, dim: int | None) -> Dense:
        """The mapping of arguments, by q and its mapped axis."""
        shape = [n for axis, n in enumerate(q.shape) if axis != dim]
        return cls(size, len(shape), shape[0] if len(shape) == _FOUR else 1)

    def folded(self, tensor: Tensor, dim: int | None) -> Tensor:
        """q, another matrix or lse, with the mapped axis in the batch."""
        wide = _in_front(tensor, dim, self.size)
        return wide.flatten(0, 1) if self.rank == _FOUR else wide

    def unfolded(self, tensor: Tensor, output: Output | None = None) -> tuple[Tensor, int]:  # noqa: ARG002
        """The inverse of `folded`, and the mapped axis; `output` is the tensor's output, None for out."""
        return tensor.unflatten(0, (self.size, self.batch)) if self.rank == _FOUR else tensor, 0

    def array(self, name: str, tensor: Tensor, dim: int | None, of_sample: bool) -> Tensor:
        """An array of scores with the mapped axis in the batch. If `of_sample`, each sample gets an array
        even if all share one, so that each has a gradient.
        """
        axes = _AXES[name]
        if dim is None and not of_sample and (tensor.dim() < axes or tensor.shape[0] == 1):
            return tensor
        wide = _in_front(tensor, dim, self.size)
        rest = wide.shape[1:]
        full = wide.reshape(self.size, *[1] * (axes - len(rest)), *rest)
        return full.expand(-1, self.batch, *full.shape[2:]).flatten(0, 1)

    def of_array(self, name: str, gradient: Tensor, array: Tensor, dim: int | None) -> tuple[Tensor, int]:
        """The gradient of the argument `array`, from that of the result of the method `array`."""
        shape = [n for axis, n in enumerate(array.shape) if axis != dim]
        of_samples = gradient.unflatten(0, (self.size, self.batch))
        if len(shape) < _AXES[name] or shape[0] == 1:
            of_samples = of_samples.sum(1)
        return of_samples.reshape(self.size, *shape), 0


@dataclass(frozen=True)
class Varlen:
    """Arguments of `attention_varlen`, mapped over, as in `Dense`; `heads` are those of q."""

    index: ClassVar = "head"
    size: int
    heads: int

    @classmethod
    def of(cls, size: int, q: Tensor, dim: int | None) -> Varlen:
        """The mapping of arguments, by q and its mapped axis."""
        return cls(size, [n for axis, n in enumerate(q.shape) if axis != dim][1])

    def folded(self, tensor: Tensor, dim: int | None) -> Tensor:
        """q or another matrix [total, heads, dim], or lse [heads, total], with the mapped axis in
        the heads.
        """
        wide = _in_front(tensor, dim, self.size)
        return wide.flatten(0, 1) if wide.dim() == _FOUR - 1 else wide.movedim(0, 1).flatten(1, 2)

    def unfolded(self, tensor: Tensor, output: Output | None = None) -> tuple[Tensor, int]:
        """The inverse of `folded`, and the mapped axis."""
        axis = tensor.dim() - (1 if output is not None and not output.has_rows else 2)  # the heads
        return tensor.unflatten(axis, (self.size, tensor.shape[axis] // self.size)), axis

    def array(self, name: str, tensor: Tensor, dim: int | None, of_sample: bool) -> Tensor:  # noqa: ARG002
        """An array [heads] or [batch, heads], with the mapped axis in the heads."""
        wide = _in_front(tensor, dim, self.size)
        if wide.dim() == 1:  # a number for all heads
            wide = wide.unsqueeze(1)
        return wide.expand(*wide.shape[:-1], self.heads).movedim(0, -2).flatten(-2)

    def of_array(self, name: str, gradient: Tensor, array: Tensor, dim: int | None) -> tuple[Tensor, int]:  # noqa: ARG002
        """The gradient of the argument `array`, from that of the result of the method `array`."""
        shape = [n for axis, n in enumerate(array.shape) if axis != dim]
        of_samples = gradient.unflatten(-1, (self.size, self.heads)).movedim(-2, 0)
        if not shape or shape[-1] == 1:
            of_samples = of_samples.sum(-1)
        return of_samples.reshape(self.size, *shape), 0


def _in_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """The tensor with the mapped axis first; a tensor that is not mapped is repeated without a copy. The last
    axis is dense, also if it was not before the mapping.
    """
    return tensor.expand(size, *tensor.shape) if dim is None else dense_rows(tensor.movedim(dim, 0))


class Mapped:
    """The rules of an operator and its backward pass, whose tensors are called `names` and are followed by
    aux and the arguments of `settings`. `kind` says where the mapped axis goes.
    """

    def __init__(self, settings: Schema, kind: type[Dense] | type[Varlen], names: Sequence[str]) -> None:
        self._settings = settings
        self._kind = kind
        self._names = tuple(names)

    def forward(self, operator: Any, info: Any, dims: Sequence[Any], *arguments: Any) -> Any:
        """Results of the operator, and their mapped axes."""
        where = self._kind.of(info.batch_size, arguments[0], dims[0])
        folded = self._folded(info, where, dims, arguments, {})
        of_options = len(self._names) + 1
        asked = {output: of_options + self._settings.names.index(output.option) for output in OUTPUTS}
        # Whether a mapped tensor requires gradients, which need lse, is not known outside the mapping.
        needs_lse = bool(tracked({str(n): t for n, t in enumerate(folded) if isinstance(t, Tensor)}))
        at = asked[LSE]
        out, *others = operator(*folded[:at], folded[at] or needs_lse, *folded[at + 1 :])
        results: list[tuple[Tensor, int | None]] = [where.unfolded(out)]
        for output, result in zip(OUTPUTS, others, strict=True):
            is_asked = folded[asked[output]]
            results.append(where.unfolded(result, output) if is_asked else (result.new_empty((0,)), None))
        return tuple(zip(*results, strict=True))

    def backward(self, operator: Any, info: Any, dims: Sequence[Any], *arguments: Any) -> Any:
        """Results of the operator's backward pass, and their mapped axes."""
        (*first, wanted), rest = arguments[:5], arguments[5:]
        rest_dims = dims[5:]
        where = self._kind.of(info.batch_size, rest[0], rest_dims[0])
        is_wanted = dict(zip(WITH_GRADIENTS, wanted, strict=False))
        folded = [None if t is None else where.folded(t, d) for t, d in zip(first, dims[:4], strict=True)]
        *gradients, of_aux = operator(*folded, wanted, *self._folded(info, where, rest_dims, rest, is_wanted))
        named = dict(zip(self._names, zip(rest, rest_dims, strict=False), strict=False))
        results: list[tuple[Tensor, int | None]] = []
        for name, gradient in zip(WITH_GRADIENTS, gradients, strict=True):
            if not is_wanted[name]:
                results.append((gradient, None))
            elif name in MATRICES:
                results.append(where.unfolded(gradient))
            else:
                results.append(where.of_array(name, gradient, *named[name]))
        tensors, axes = zip(*results, strict=True)
        return (*tensors, of_aux), (*axes, [None] * len(of_aux))

    def _folded(
        self,
        info: Any,
        where: Dense | Varlen,
        dims: Sequence[Any],
        arguments: Sequence[Any],
        of_samples: Mapping[str, bool],
    ) -> list[Any]:
        count = len(self._names)
        settings = self._settings.read(arguments[count + 1 :])
        named = dict(zip(self._names, arguments, strict=False))
        self._check(info, dims, settings, has_pages=named.get("block_table") is not None)
        folded = []
        for name, tensor, dim in zip(self._names, arguments[:count], dims[:count], strict=True):
            mapped = tensor
            if tensor is not None and name in MATRICES:
                mapped = where.folded(tensor, dim)
            elif tensor is not None and name in _AXES:
                mapped = where.array(name, tensor, dim, of_samples.get(name, False))
            elif name == SEED and dim is not None:
                mapped = tensor.select(dim, 0)
            folded.append(mapped)
        return [*folded, *arguments[count:]]

    def _check(self, info: Any, dims: Sequence[Any], settings: Mapping[str, Any], *, has_pages: bool) -> None:
        mapped = [n for n, dim in zip(self._names, dims, strict=False) if dim is not None]
        known = {*MATRICES, *_AXES, SEED}
        problem = next(
            (f"over {name}, which all samples must share" for name in mapped if name not in known), ""
        )
        aux = dims[len(self._names)]
        if aux is not None and any(dim is not None for dim in aux):
            problem = "over tensors in aux, which all samples must share"
        for trace in map(trace_of, (settings[SCORE_MOD], settings[MASK_MOD])):
            if trace is not None and any(
                s.op == "input" and s.value == self._kind.index for s in trace.steps
            ):
                problem = f"over a {trace.name} that reads the index of the {self._kind.index}"
        if has_pages:
            problem = "over keys in pages, which all sequences share"
        if settings["dropout"] and info.randomness == "same":
            problem = "with randomness='same' over dropout, whose weights differ between samples"
        if problem:
            raise LaunchError(
                f"{self._settings.caller}: torch.func.vmap cannot map {problem}; call it for each sample, or "
                "give the samples as one batch"
            )
