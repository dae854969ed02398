"""The operators of a function of attention: of its results, of its results in given memory, and of its
gradients; and the calls of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

import flash
from flash.adapters.torch import flops, gradients, library
from flash.adapters.torch.forward_mode import Computation
from flash.adapters.torch.functions import functions_of, trace_of
from flash.adapters.torch.settings import SEED, Known, Schema, or_empty, seed_tensor, shape_of, spread
from flash.adapters.torch.tensors import (
    FP8,
    autocast_lowers,
    dense_rows,
    in_forward_level,
    in_transform,
    require_no_tangents,
    require_no_tracking,
    require_plain,
    require_values,
    tracked,
    with_tangents,
)
from flash.adapters.torch.vmap import MATRICES, WITH_GRADIENTS, Dense, Varlen
from flash.calls.backend import for_gradients_of_host
from flash.gradients.tangents import attention_tangents
from flash.launch.options import ATTENTION
from flash.mods.elements import differentiable
from flash.mods.record import MASK_MOD, SCORE_MOD
from flash.mods.trace import AUX
from flash.operands.dtype_names import Backend, Precision
from flash.problem.outputs import LSE, OUTPUTS
from flash.scores.features import DIFFERENTIABLE, SCORES, require_known
from ptxgen.errors import LaunchError
from ptxgen.runtime.settings import WITHOUT_KERNELS

_WITH_TANGENTS: Final = ATTENTION  # the function whose results have tangents
# What becomes of autocast's type.
_LOWERED: Final = (*MATRICES, *(f.argument for f in SCORES if f.axes and f.array_dtype is None))
_OF_ADAPTER: Final = ("out", "stream", "deterministic", "max_seqlen_k")  # checked here, or unread
_MOST_KEYS: Final = "max_seqlen_k"
_STARTS: Final = "cu_seqlens_q"
_TENSORS: Final = ", ".join(["Tensor"] * len(OUTPUTS))  # the results other than out
_NOT_INTO_OUT: Final = "calls with out=... are not differentiated"


class Operators:
    """The operators `ptxgen_flash::caller`, `::caller_out` and `::caller_backward`, by which torch calls the
    functions `caller` and `caller_backward` of `flash`.

    `required` and `optional` are the names of their tensors, q, k and v first; the arrays of features that
    `scores` names follow, then the tensors of aux and the arguments of `Schema`. `where` says where
    torch.func.vmap puts a mapped axis, `pairs` how many pairs of queries and keys a call has.
    """

    def __init__(
        self,
        caller: str,
        required: Sequence[str],
        optional: Sequence[str],
        scores: type,
        where: type[Dense] | type[Varlen],
        pairs: Callable[[flops.Arguments], int],
    ) -> None:
        self.caller = caller
        self._required = frozenset(required)
        self._settings = Schema(caller, scores)
        self._names = (*required, *optional, *self._settings.arrays, SEED)
        tensors = [f"Tensor{'' if name in required else '?'} {name}" for name in self._names]
        schema = f"{', '.join(tensors)}, Tensor[]? aux, {self._settings.text}"
        lowered = [at for at, name in enumerate(self._names) if name in _LOWERED]
        self._run = library.declare(
            caller, f"({schema}) -> (Tensor, {_TENSORS})", self._results, self._fake, lowered
        )
        self._run_into = library.declare(
            f"{caller}_out",
            f"(Tensor(a!) out, {schema}) -> ({_TENSORS})",
            self._results_into,
            self._fake_into,
            [at + 1 for at in lowered],
        )
        flops.count(self._run, pairs)
        flops.count(self._run_into, pairs)
        self._run_in_transform = gradients.differentiate(
            self._run, self._settings, schema, self._names, self._gradients, where, pairs
        )
        library.refuse_gradients(self._run_into, caller, _NOT_INTO_OUT)
        if caller == _WITH_TANGENTS:
            of = ", ".join(f"Tensor? of_{name}" for name in MATRICES)
            self._run_tangents = library.declare(
                f"{caller}_tangents",
                f"(Tensor out, Tensor lse, {of}, {schema}) -> (Tensor, Tensor)",
                self._tangents,
                lambda out, lse, *_: (torch.empty_like(out), torch.empty_like(lse)),
            )

    def call(
        self, tensors: Mapping[str, Tensor | None], options: Mapping[str, Any], known: type, function: Any
    ) -> Any:
        """The results of the function `caller` of `flash`. `tensors` are the first arguments of the operator,
        in its order, `options` all other arguments of the `function` of this package, which `known` names.
        """
        caller = self.caller
        require_known(caller, options, known, function)
        inputs = {**tensors, **{name: options.get(name) for name in self._settings.arrays}}
        require_plain(caller, inputs, self._required)
        cached = None if torch.compiler.is_compiling() else self._settings.known(options)
        asked = self._settings.checked(options) if cached is None else {**cached.checked}
        if asked is None:
            self._refuse({**tensors, **{n: x for n, x in options.items() if n not in _OF_ADAPTER}})
            raise AssertionError(f"flash.{caller} takes arguments that no schema has")
        out, backend = options.get("out"), asked["backend"]
        wanted = [bool(asked[output.option]) for output in OUTPUTS]
        in_forward_mode = False
        if in_forward_level():
            in_forward_mode = out is None and self._has_tangents(inputs, backend, asked["precision"])
            if not in_forward_mode:
                require_no_tangents(caller, {**inputs, "out": out})
        functions = functions_of(caller, options.get(SCORE_MOD), options.get(MASK_MOD), options.get(AUX))
        aux = {f"aux[{name!r}]": array for name, array in (functions.aux or {}).items()}
        differentiated = tracked({**inputs, **aux})
        if aux and (in_forward_mode or in_transform()):
            require_no_tracking(caller, tracked(aux), gradients.NOT_OF_AUX)
        if aux:
            require_no_tangents(caller, aux)
        asked[LSE.option] = bool(asked[LSE.option] or differentiated or in_forward_mode)
        seed = seed_tensor(caller, asked["dropout"], options.get(SEED))
        compute = self._computed
        if cached is not None and seed is None and asked[LSE.option] == cached.checked[LSE.option]:
            plain, compute = cached.plain, functools.partial(self._computed_as_known, cached)
        else:
            plain = self._settings.plain(asked, functions)
        arguments = (*inputs.values(), seed, functions.tensors, *plain)
        if in_forward_mode:
            result, *others = self._with_tangents(arguments)
        elif out is None:
            result, *others = library.run(
                self._run, self._run_in_transform, compute, arguments, bool(differentiated)
            )
        else:
            require_plain(caller, {"out": out})
            require_no_tracking(caller, tracked({**inputs, **aux, "out": out}), _NOT_INTO_OUT)
            result, others = out, self._run_into(out, *arguments)
        if not any(wanted):
            return result
        return (result, *[x for is_wanted, x in zip(wanted, others, strict=True) if is_wanted])

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _refuse(self, arguments: Mapping[str, Any]) -> None:
        """Raise the error of the function `caller` of `flash` for arguments of types that no schema has."""
        with torch.no_grad():
            getattr(flash, self.caller)(**arguments)

    def _has_tangents(self, inputs: Mapping[str, Any], backend: Backend, precision: Precision | None) -> bool:
        """Whether tensors have tangents, and numpy computes those of the results: in calls of `attention`,
        with tangents of q, k and v alone, on the host, without autocast, with a backend whose gradients numpy
        computes.
        """
        names, q = with_tangents(inputs), inputs["q"]
        if not names or self.caller != _WITH_TANGENTS or not set(names) <= set(MATRICES):
            return False
        on_host = q.device.type == "cpu" and not autocast_lowers(q)
        return on_host and for_gradients_of_host(backend, precision) in WITHOUT_KERNELS

    def _with_tangents(self, arguments: Sequence[Any]) -> tuple[Tensor, ...]:
        """The results, out and lse with their tangents, by numpy."""
        count = len(self._names)
        aux, plain = arguments[count], list(arguments[count + 1 :])
        asked = self._settings.read(plain)
        backend = for_gradients_of_host(asked["backend"], asked["precision"])
        plain[self._settings.names.index("backend")] = backend

        def results(*tensors: Any) -> Any:
            return self._run(*tensors, aux, *plain)

        def tangents(*args: Any) -> Any:
            return self._run_tangents(*args[count:], *args[:count], aux, *plain)

        return Computation(self.caller, results, tangents)(arguments[:count])

    # ---- what the operators do with plain tensors

    def _read(self, arguments: Sequence[Any]) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
        """The tensors that are not None, the arguments about scores, and all others, each by name."""
        count = len(self._names)
        asked = self._settings.read(arguments[count + 1 :])
        tensors = {name: x for name, x in zip(self._names, arguments, strict=False) if x is not None}
        return tensors, self._settings.scores(asked, tensors.pop(SEED, None), arguments[count]), asked

    def _computed(self, *arguments: Any, out: Tensor | None = None) -> tuple[Any, ...]:
        """out and the other results, None for those that the call does not ask for."""
        tensors, scores, asked = self._read(arguments)
        return self._results_of(tensors, scores, self._settings.of_results(asked), asked, out)

    def _computed_as_known(self, known: Known, *arguments: Any) -> tuple[Any, ...]:
        """`_computed`, for arguments of a call whose options are known, and without those of functions."""
        tensors = {name: x for name, x in zip(self._names, arguments, strict=False) if x is not None}
        return self._results_of(tensors, known.scores, known.results, known.checked, None)

    def _results_of(
        self,
        tensors: Mapping[str, Tensor],
        scores: Mapping[str, Any],
        how: Mapping[str, Any],
        asked: Mapping[str, Any],
        out: Tensor | None,
    ) -> tuple[Any, ...]:
        """out and the other results that are `asked` for, else None, of the function `caller` of `flash`."""
        if tensors["q"].dtype in FP8:  # no operator takes their scales
            raise LaunchError(
                f"{self.caller}: q must be one of float32, float16, bfloat16, got {tensors['q'].dtype}; call "
                f"flash.{self.caller}, which takes its scales, or convert q, k and v, such as with q.float()"
            )
        return spread(getattr(flash, self.caller)(**tensors, **scores, **how, out=out), asked)

    def _tangents(self, out: Tensor, lse: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
        """The tangents of out and lse for those of q, k and v, None for 0: these tangents are
        the first `arguments`, and those of the operator follow them.
        """
        count = len(MATRICES)
        arrays, scores, asked = self._read(arguments[count:])
        matrices = {name: dense_rows(arrays.pop(name)) for name in MATRICES}
        of = {n: dense_rows(x) for n, x in zip(MATRICES, arguments[:count], strict=True) if x is not None}
        results = attention_tangents(
            {**matrices, "out": out, "lse": lse},
            of,
            {**scores, **arrays},
            causal=asked["causal"],
            softmax_scale=asked["softmax_scale"],
            layout=asked["layout"],
        )
        of_out, of_lse = map(torch.from_numpy, results)
        return of_out.to(out.dtype), of_lse

    def _gradients(
        self,
        dout: Tensor,
        dlse: Tensor | None,
        out: Tensor,
        lse: Tensor,
        wanted: Sequence[bool],
        *arguments: Any,
    ) -> tuple[Tensor, ...]:
        """The gradients of `WITH_GRADIENTS`, and a list of those of aux; a tensor without elements for what
        is not `wanted`. On a GPU they are computed on the current stream, where autograd makes `dout`.
        """
        tensors, scores, asked = self._read(arguments)
        q, how = tensors["q"], self._settings.of_gradients(asked)
        elements = [f"{AUX}_{name}" for name in asked["aux_names"] or ()]
        is_wanted = dict(zip((*WITH_GRADIENTS, *elements), wanted, strict=True))
        read = [array.operand for array in differentiable(trace_of(asked[SCORE_MOD]))]
        backend = asked["backend"]
        if q.device.type == "cpu":
            backend = for_gradients_of_host(backend, asked["precision"])
        elif _MOST_KEYS in how and how[_MOST_KEYS] is None:
            how[_MOST_KEYS] = tensors["k"].shape[0]
        computed = getattr(flash, f"{self.caller}_backward")(
            dense_rows(dout),
            out=out,
            lse=lse.contiguous(),
            dlse=None if dlse is None else dlse.contiguous(),
            **tensors,
            **scores,
            **how,
            needed=[name for name in MATRICES if is_wanted[name]],
            wanted=[name for name in (*DIFFERENTIABLE, *read) if is_wanted[name]],
            backend=backend,
        )
        gradients = dict(zip(MATRICES, computed, strict=False)) | computed.arrays
        for name, array in zip(elements, arguments[len(self._names)] or (), strict=True):
            if is_wanted[name] and name not in read:  # no score depends on it
                gradients[name] = torch.zeros_like(array)
        of = [gradients[name] if is_wanted[name] else q.new_empty((0,)) for name in is_wanted]
        return (*of[: len(WITH_GRADIENTS)], of[len(WITH_GRADIENTS) :])

    def _results(self, q: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        out, *others = self._computed(q, *arguments)
        return (out, *[or_empty(x, q) for x in others])

    def _results_into(self, out: Tensor, q: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        return tuple([or_empty(x, q) for x in self._computed(q, *arguments, out=out)[1:]])

    def _fake(self, q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        return (q.new_empty((*q.shape[:-1], v.shape[-1])), *self._fake_into(q, q, k, v, *arguments))

    def _fake_into(self, out: Tensor, q: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        count = len(self._names)
        asked = self._settings.read(arguments[count:])
        named = {"out": out, **dict(zip(self._names[1:], arguments, strict=False))}
        named |= zip(asked["aux_names"] or (), arguments[count - 1] or (), strict=True)
        require_values(self.caller, q, {name: x for name, x in named.items() if x is not None})
        sequences = named[_STARTS].shape[0] - 1 if _STARTS in named else 0
        shapes = [
            shape_of(o, q, asked.get("layout"), sequences) if asked[o.option] else (0,) for o in OUTPUTS
        ]
        return tuple([q.new_empty(shape, dtype=torch.float32) for shape in shapes])
