"""The operators of a function of attention: of its results, of its results in given memory, and of its
gradients; and the calls of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch import Tensor

import flash
from flash.adapters.torch import flops, gradients, library
from flash.adapters.torch.forward_mode import Computation
from flash.adapters.torch.functions import functions_of
from flash.adapters.torch.settings import (
    ANY_SPLITS,
    SCHEMA,
    Settings,
    causal_word,
    have_types,
    seed_tensor,
    sides,
    stream_number,
)
from flash.adapters.torch.tensors import (
    FP8,
    autocast_lowers,
    dense_rows,
    require_no_tangents,
    require_no_tracking,
    require_plain,
    require_values,
    tracked,
    with_tangents,
)
from flash.adapters.torch.vmap import DIFFERENTIABLE, MATRICES, Dense, Varlen
from flash.gradients.tangents import attention_tangents
from flash.host.caller import flag
from flash.launch.backend_choice import for_gradients_of_host
from flash.operands.words import Backend, Precision
from flash.problem.splits import splits_of
from flash.scores.features import ScoreArguments, VarlenArguments
from ptxgen.arguments import in_numbers
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.settings import WITHOUT_KERNELS

_SEED: Final = "dropout_seed"
_FUNCTIONS: Final = ("score_mod", "mask_mod", "aux")
_WITH_TANGENTS: Final = "attention"  # the function whose results have tangents
_LOWERED: Final = (*MATRICES, "bias", "key_bias")  # what becomes of autocast's type
_NOT_INTO_OUT: Final = "calls with out=... are not differentiated"


class Operators:
    """The operators `ptxgen_flash::who`, `::who_out` and `::who_backward`, by which torch calls
    `flash.who` and `flash.who_backward`.

    `required` and `optional` are the names of their tensors, q, k and v first; behind them are the
    tensors of aux and the arguments of `Settings`, of which `more` are those that the schema has beside
    `SCHEMA`. `where` says where torch.func.vmap puts a mapped axis, `pairs` how many pairs of queries and
    keys a call has.
    """

    def __init__(
        self,
        who: str,
        required: Sequence[str],
        optional: Sequence[str],
        where: type[Dense] | type[Varlen],
        pairs: Callable[[flops.Arguments], int],
        more: str = "",
    ) -> None:
        self.who = who
        self._required = frozenset(required)
        self._names = (*required, *optional, _SEED)
        tensors = [f"Tensor{'' if name in required else '?'} {name}" for name in self._names]
        schema = f"{', '.join(tensors)}, Tensor[]? aux, {SCHEMA}{more}"
        lowered = [at for at, name in enumerate(self._names) if name in _LOWERED]
        self._run = library.declare(
            who, f"({schema}) -> (Tensor, Tensor)", self._results, self._fake, lowered
        )
        self._run_into = library.declare(
            f"{who}_out",
            f"(Tensor(a!) out, {schema}) -> Tensor",
            self._results_into,
            self._fake_into,
            [at + 1 for at in lowered],
        )
        flops.count(self._run, pairs)
        flops.count(self._run_into, pairs)
        self._run_in_transform = gradients.differentiate(
            self._run, who, schema, self._names, self._gradients, where, pairs
        )
        library.refuse_gradients(self._run_into, who, _NOT_INTO_OUT)
        if who == _WITH_TANGENTS:
            of = ", ".join(f"Tensor? of_{name}" for name in MATRICES)
            self._run_tangents = library.declare(
                f"{who}_tangents",
                f"(Tensor out, Tensor lse, {of}, {schema}) -> (Tensor, Tensor)",
                self._tangents,
                lambda out, lse, *_: (torch.empty_like(out), torch.empty_like(lse)),
            )

    def call(
        self,
        tensors: Mapping[str, Tensor | None],
        scores: ScoreArguments | VarlenArguments,
        *,
        out: Tensor | None,
        stream: object,
        deterministic: bool,
        max_seqlen_k: int | None = None,
        **others: Any,
    ) -> Any:
        """The results of `flash.who`. `tensors` are the first of the operator, in its order; those of
        scores are in `scores`, and in `others` the arguments that forward passes have beside them.
        """
        who, of = self.who, cast(Mapping[str, Any], scores)
        inputs = {**tensors, **{name: of.get(name) for name in self._names[len(tensors) : -1]}}
        require_plain(who, inputs, self._required)
        handle, same_bits = stream_number(who, stream), flag(who, "deterministic", deterministic)
        numbers = {name: of.get(name) for name in ("window", "softcap")} | {"dropout": of.get("dropout", 0.0)}
        asked = {name: in_numbers(value) for name, value in {**others, **numbers}.items()}
        if not have_types(asked):
            self._refuse({**tensors, **of, **others})
        backend, precision, return_lse = asked["backend"], asked["precision"], bool(asked["return_lse"])
        in_forward_mode = out is None and self._has_tangents(inputs, backend, precision)
        if not in_forward_mode:
            require_no_tangents(who, {**inputs, "out": out})
        differentiated = tracked(inputs)
        functions = functions_of(who, *(of.get(n) for n in _FUNCTIONS))
        if aux := functions.aux:
            of_aux = tracked({f"aux[{name!r}]": array for name, array in aux.items()})
            require_no_tracking(who, of_aux, gradients.NOT_OF_AUX)
            require_no_tangents(who, {f"aux[{name!r}]": array for name, array in aux.items()})
        given = (
            *inputs.values(),
            seed_tensor(who, asked["dropout"], of.get(_SEED)),
            functions.tensors,
            causal_word(asked["causal"]),
            precision,
            asked["softmax_scale"],
            asked.get("layout", ""),
            sides(asked["window"]),
            asked["softcap"],
            asked["dropout"],
            functions.score_mod,
            functions.mask_mod,
            functions.names,
            return_lse or bool(differentiated) or in_forward_mode,
            backend,
            handle,
            same_bits,
            splits_of(who, asked["splits"], ConfigError) or ANY_SPLITS,
        )
        if "layout" not in asked:
            interleaved = bool(asked["rotary_interleaved"])
            given += asked["max_seqlen_q"], max_seqlen_k, asked["kv_layout"], interleaved
        if in_forward_mode:
            result, lse = self._with_tangents(given)
        elif out is None:
            result, lse = library.run(
                self._run, self._run_in_transform, self._computed, given, bool(differentiated)
            )
        else:
            require_plain(who, {"out": out})
            require_no_tracking(who, tracked({**inputs, "out": out}), _NOT_INTO_OUT)
            result, lse = out, self._run_into(out, *given)
        return (result, lse) if return_lse else result

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _refuse(self, arguments: Mapping[str, Any]) -> None:
        """Raise what `flash.who` raises for arguments of no type that a schema has."""
        with torch.no_grad():
            getattr(flash, self.who)(**arguments)

    def _has_tangents(self, inputs: Mapping[str, Any], backend: Backend, precision: Precision | None) -> bool:
        """Whether tensors have tangents, and numpy computes those of the results: in calls of `attention`,
        with tangents of q, k and v alone, on the host, without autocast, with a backend whose gradients numpy
        computes.
        """
        names, q = with_tangents(inputs), inputs["q"]
        if not names or self.who != _WITH_TANGENTS or not set(names) <= set(MATRICES):
            return False
        on_host = q.device.type == "cpu" and not autocast_lowers(q)
        return on_host and for_gradients_of_host(backend, precision) in WITHOUT_KERNELS

    def _with_tangents(self, given: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """out and lse with their tangents, by numpy."""
        count = len(self._names)
        aux, asked = given[count], Settings(*given[count + 1 :])
        backend = for_gradients_of_host(asked.backend, asked.precision)
        settings = asked._replace(backend=backend)[: len(given) - count - 1]

        def results(*tensors: Any) -> Any:
            return self._run(*tensors, aux, *settings)

        def tangents(*args: Any) -> Any:
            return self._run_tangents(*args[count:], *args[:count], aux, *settings)

        return Computation(self.who, results, tangents)(given[:count])

    # ---- what the operators do with plain tensors

    def _read(self, given: Sequence[Any]) -> tuple[dict[str, Tensor], dict[str, Any], Settings]:
        """The tensors that are given, the arguments about scores, and all others."""
        count = len(self._names)
        settings = Settings(*given[count + 1 :])
        tensors = {name: x for name, x in zip(self._names, given, strict=False) if x is not None}
        return tensors, settings.scores(tensors.pop(_SEED, None), given[count]), settings

    def _computed(self, *given: Any, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        tensors, scores, settings = self._read(given)
        if tensors["q"].dtype in FP8:  # no operator takes their scales
            raise LaunchError(
                f"{self.who}: q must be one of float32, float16, bfloat16, got {tensors['q'].dtype}; call "
                f"flash.{self.who}, which takes its scales, or convert q, k and v, such as with q.float()"
            )
        found = getattr(flash, self.who)(
            **tensors,
            **scores,
            **settings.of_results,
            return_lse=settings.return_lse,
            out=out,
            stream=settings.stream,
            backend=settings.backend,
        )
        return found if settings.return_lse else (found, None)

    def _tangents(self, out: Tensor, lse: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        """The tangents of out and lse for those of q, k and v, None for 0: these tangents are
        the first of `given`, and the arguments of the operator follow them.
        """
        count = len(MATRICES)
        arrays, scores, settings = self._read(given[count:])
        matrices = {name: dense_rows(arrays.pop(name)) for name in MATRICES}
        of = {n: dense_rows(x) for n, x in zip(MATRICES, given[:count], strict=True) if x is not None}
        results = attention_tangents(
            {**matrices, "out": out, "lse": lse},
            of,
            {**scores, **arrays},
            causal=settings.causal or False,
            softmax_scale=settings.softmax_scale,
            layout=settings.layout,
        )
        of_out, of_lse = map(torch.from_numpy, results)
        return of_out.to(out.dtype), of_lse

    def _gradients(
        self, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, wanted: Sequence[bool], *given: Any
    ) -> tuple[Tensor, ...]:
        """The gradients of q, k, v and `DIFFERENTIABLE`; a tensor without elements for what is not
        `wanted`. On a GPU they are computed on the current stream, where autograd makes `dout`.
        """
        tensors, scores, settings = self._read(given)
        q, k = tensors["q"], tensors["k"]
        backend = settings.backend
        if q.device.type == "cpu":
            backend = for_gradients_of_host(backend, settings.precision)
        found = getattr(flash, f"{self.who}_backward")(
            dense_rows(dout),
            out=out,
            lse=lse.contiguous(),
            dlse=None if dlse is None else dlse.contiguous(),
            **tensors,
            **scores,
            **settings.of_gradients(k),
            wanted=[name for name, asked in zip(DIFFERENTIABLE, wanted, strict=True) if asked],
            backend=backend,
        )
        arrays = [found.arrays[n] if n in found.arrays else q.new_empty((0,)) for n in DIFFERENTIABLE]
        return (*found[: len(MATRICES)], *arrays)

    def _results(self, q: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        out, lse = self._computed(q, *given)
        return out, _or_empty(lse, q)

    def _results_into(self, out: Tensor, q: Tensor, *given: Any) -> Tensor:
        _, lse = self._computed(q, *given, out=out)
        return _or_empty(lse, q)

    def _fake(self, q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        return q.new_empty((*q.shape[:-1], v.shape[-1])), self._fake_into(q, q, k, v, *given)

    def _fake_into(self, out: Tensor, q: Tensor, *given: Any) -> Tensor:
        count = len(self._names)
        settings = Settings(*given[count:])
        named = {"out": out, **dict(zip(self._names[1:], given, strict=False))}
        named |= zip(settings.aux_names or (), given[count - 1] or (), strict=True)
        require_values(self.who, q, {name: x for name, x in named.items() if x is not None})
        return q.new_empty(settings.lse_shape(q) if settings.return_lse else (0,), dtype=torch.float32)


def _or_empty(lse: Tensor | None, q: Tensor) -> Tensor:
    return q.new_empty((0,), dtype=torch.float32) if lse is None else lse
