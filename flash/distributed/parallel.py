"""`ContextParallel`: attention to sequences whose rows lie on the ranks of a process group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from flash.distributed import sums
from flash.distributed.agreement import RankCall, agreed
from flash.distributed.arrays import Arrays
from flash.distributed.calls import Call, problem_of, read
from flash.distributed.dtensors import Sharded, is_dtensor, local_of
from flash.distributed.eager import eager
from flash.distributed.engine import Engine, Forward
from flash.distributed.exchange import Form, Peers, Traffic
from flash.distributed.layouts import Sharding, ShardLayout
from flash.distributed.plan import SCHEMES, Machine, Plan, Scheme, chosen, explained
from flash.host.caller import outputs_of
from flash.operands.dtype_names import Backend, Causal, Layout, Precision
from flash.problem.outputs import LSE, MAX_LOGIT, OUTPUTS
from flash.scores.features import ScoreArguments, require_known, takes
from ptxgen.arguments import integer, is_one_of
from ptxgen.errors import ConfigError, LaunchError, did_you_mean, shown

_CALLER: Final = "ContextParallel"
_AUTO: Final = "auto"


class _Scores(ScoreArguments, total=False):
    """The arguments of scores, and those of `flash.attention` that apply to the kernels of tiles."""

    softmax_scale: float | None
    precision: Precision | None
    backend: Backend


class ContextParallel:
    """Attention to sequences whose rows are shared out among the ranks of a process group.

    group: a group of `torch.distributed`; None for that of all processes. Tensors travel by its backend,
        gloo or NCCL.
    layout: which rows a rank holds, "zigzag", "striped" or "contiguous" (`Sharding`).
    scheme: "ring", "gather", "ulysses" or "2d" (`flash/distributed/plan.py`); "auto" chooses by the
        estimate of `Plan.seconds`, which `explain` prints.
    degree: with scheme "2d", the ranks that exchange heads for rows; None for the divisor of the group's
        size with the fewest bytes.
    machine: the rates and latency that the estimate assumes.

    All ranks of the group make the same calls in the same order. A call compares them before anything
    else is sent, and raises `LaunchError` on every rank if they differ. A rank that ends or stops makes
    the calls of the others raise `PeerError` with its number and the step, within the timeout of the
    group. For the same world, layout, scheme and inputs, results have the same bits.

    `plan` is that of the last call; `traffic` and `gradient_traffic` say what this rank sent and computed
    in the last forward and backward pass.

    Raises `ConfigError` for unknown words, `LaunchError` without a process group.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        layout: ShardLayout = "zigzag",
        scheme: Scheme | Literal["auto"] = _AUTO,
        *,
        degree: int | None = None,
        machine: Machine | None = None,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise LaunchError(
                f"{_CALLER}: needs a process group; call torch.distributed.init_process_group first, in a "
                "program that torchrun starts"
            )
        if not is_one_of(scheme, (*SCHEMES, _AUTO)):
            raise ConfigError(
                f"{_CALLER}: scheme must be one of {', '.join((*SCHEMES, _AUTO))}, got {shown(scheme)}"
                f"{did_you_mean(scheme, (*SCHEMES, _AUTO))}"
            )
        self.peers = Peers(group, f"{_CALLER}.attention")
        self.sharding = Sharding(layout, self.peers.world)
        self.scheme = str(scheme)
        if degree is not None and (scheme != "2d" or integer(degree, 1, self.peers.world) is None):
            raise ConfigError(
                f"{_CALLER}: degree must be the number of ranks that exchange heads, 1 to "
                f"{self.peers.world}, "
                f"and is for scheme '2d' alone, got {shown(degree)} with scheme {scheme!r}"
            )
        self.degree = degree
        self.machine = Machine() if machine is None else machine
        self.traffic, self.gradient_traffic = Traffic(), Traffic()
        self.plan: Plan | None = None

    def __repr__(self) -> str:
        return (
            f"<{_CALLER}(layout={self.sharding.layout!r}, scheme={self.scheme!r}): rank {self.peers.rank} of "
            f"{self.peers.world}>"
        )

    # ------------------------------------------------------------------------------------ shards

    def positions(self, length: int, device: Any = None) -> Tensor:
        """The rows of a sequence of `length` rows that this rank holds, int64: what rotary embeddings and
        labels need.
        """
        whole = torch.arange(length, device=device)
        return torch.cat([whole[run.positions] for run in self.sharding.runs(self.peers.rank, length)])

    def shard(self, x: Tensor, axis: int = -2) -> Tensor:
        """The rows of this rank, of a tensor that every rank has whole; `axis` is the one of rows. Of a
        replicated DTensor a sharded one. Gradients are those of this rank's rows.
        """
        if is_dtensor(x):
            return Sharded.of(x, axis, self.sharding).shard(x, self._local_rows)
        return self._local_rows(x, axis)

    def _local_rows(self, x: Tensor, axis: int) -> Tensor:
        return x.index_select(axis, self.positions(x.shape[axis], x.device))

    @eager
    def unshard(self, x: Tensor, axis: int = -2) -> Tensor:
        """The whole tensor, on every rank, from the rows of each: the inverse of `shard`, by all ranks
        together. Of a sharded DTensor a replicated one. Its gradient on each rank must be that of the
        same number, which every rank computes from the whole tensor; each takes its rows of it.

        Raises `LaunchError` if the shapes or types of ranks differ, `PeerError` if a rank is lost.
        """
        peers = self.peers.named(f"{_CALLER}.unshard")

        def read_all() -> RankCall[tuple[Sharded | None, Tensor, int]]:
            sharded = Sharded.of(x, axis, self.sharding) if is_dtensor(x) else None
            local = x if sharded is None else sharded.local(x, "x")
            peers.require_device("x", local)
            at = range(local.dim())[axis]
            shape = [n for d, n in enumerate(local.shape) if d != at]
            words = {"shape without rows": str(shape), "axis": str(at), "dtype": str(local.dtype)}
            words |= {"layout of shards": self.sharding.layout, "device": local.device.type}
            return RankCall((sharded, local, at), words, (local.shape[at],))

        with peers.exclusive_call():
            (sharded, local, at), every = agreed(peers, read_all)
            rows = [count for (count,) in every]
            wanted = [self.sharding.rows(rank, sum(rows)) for rank in range(peers.world)]
            if rows != wanted:
                raise LaunchError(
                    f"{peers.caller}: {sum(rows)} rows are {wanted} on the ranks with layout "
                    f"{self.sharding.layout!r}, got {rows}; shard with the same ContextParallel"
                )
            whole: Tensor = _Unshard.apply(local, at, rows, peers, self)
        return whole if sharded is None else sharded.replicated(whole)

    # --------------------------------------------------------------------------------- attention

    @eager
    @takes(_Scores, backend=_AUTO)
    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        causal: Causal = False,
        return_lse: bool = False,
        return_max_logit: bool = False,
        layout: Layout = "bhsd",
        **arguments: Unpack[_Scores],
    ) -> Any:
        """`flash.attention` of this rank's queries to the keys of all ranks: out, or a tuple of out and the
        other results of the call: lse with `return_lse`, then max_logit with `return_max_logit`, which is
        that of the whole sequence, the same on every rank.

        q [batch, heads, rows, head_dim], k [batch, kv_heads, rows, head_dim] and v [batch, kv_heads, rows,
        head_dim_v] are this rank's rows of sequences, as `shard` gives them; with layout "bshd" rows come
        before heads. They are plain tensors, or DTensors that are sharded along rows, and so are the
        results. With `cu_seqlens_q`, int32 [documents + 1], they are packed, q [rows, heads, head_dim],
        and documents begin at these rows of the whole sequence, on any ranks; `cu_seqlens_k` is by default
        the same.

        The arguments of scores are those of `flash.attention`, or of `flash.attention_varlen` with
        documents, and mean the same: rows have the numbers that they have on one device. `bias` and `mask`
        have the rows of this rank, or one for all, and columns for all keys in the order of the sequence;
        `key_bias`, `alibi_slopes`, `sink` and arrays of `aux` are whole on every rank. `dropout` needs a
        `dropout_seed`, and drops the weights that it drops on one device.

        Gradients of q, k, v and of a bias with this rank's rows are complete on their rank. Those of
        alibi_slopes, key_bias, sink and a bias of one row, which all ranks have, are what this rank adds:
        sum them over the group, as those of parameters, with `sum_gradients`.

        Raises `LaunchError` and `ConfigError` for arguments that do not fit together or differ between
        ranks, before tensors are sent, `PeerError` if a rank is lost.
        """
        require_known(f"{_CALLER}.attention", arguments, _Scores, ContextParallel.attention)
        options = {LSE.option: return_lse, MAX_LOGIT.option: return_max_logit}
        outputs = outputs_of(f"{_CALLER}.attention", options)
        scores = {"backend": _AUTO, **arguments}
        cuts = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
        with self.peers.exclusive_call():
            extra_words = {MAX_LOGIT.option: str(MAX_LOGIT in outputs)}
            sharded, call, plan = self._agreed(
                self.peers, (q, k, v), causal, layout, scores, cuts, extra_words
            )
            self.plan = plan
            engine = Engine(plan, self.peers, call.scores, MAX_LOGIT in outputs)
            tensors = [call.heads_first(x) for x in (call.q, call.k, call.v)]
            out, lse, tops = _Attention.apply(
                engine, self, tuple(call.arrays), *tensors, *call.arrays.values()
            )
        out, lse = call.in_layout(out), call.lse_in_layout(lse)
        if sharded is not None:
            out, lse = sharded.wrapped(out), sharded.wrapped(lse, 2)
            tops = sharded.replicated(tops) if MAX_LOGIT in outputs else tops
        results = {LSE: lse, MAX_LOGIT: tops}
        return (out, *[results[output] for output in outputs]) if outputs else out

    @eager
    def sum_gradients(self, tensors: Iterable[Tensor]) -> None:
        """Replace the gradients (`grad`) of tensors that every rank has, as parameters, by their sums over
        the group, by all ranks together after `backward()`. The order is that of the ranks: the same
        gradients have sums of the same bits. Tensors without a gradient are passed over.

        Raises `LaunchError` on every rank if the tensors, or which have gradients, differ in number, shape
        or type, or for gradients that are DTensors; `PeerError` if a rank is lost, after which gradients
        may be of this rank or of all.
        """
        sums.sum_gradients(self.peers.named(f"{_CALLER}.sum_gradients"), tensors)

    @eager
    def explain(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: Causal = False,
        layout: Layout = "bhsd",
        **arguments: Any,
    ) -> str:
        """What `attention` with these arguments would do, and why, as text: the scheme, the bytes and the
        scores. Ranks compare their calls, all together, and nothing else is sent.

        Raises what `attention` raises for arguments that do not fit.
        """
        cuts = {name: arguments.pop(name, None) for name in ("cu_seqlens_q", "cu_seqlens_k")}
        for output in OUTPUTS:
            arguments.pop(output.option, None)
        peers = self.peers.named(f"{_CALLER}.explain")
        with peers.exclusive_call():
            _, _, plan = self._agreed(peers, (q, k, v), causal, layout, arguments, cuts)
        name, _ = chosen(plan.problem, self.scheme, self.degree, self.machine)
        return explained(plan.problem, name, plan, self.machine, self.scheme)

    def _agreed(
        self,
        peers: Peers,
        tensors: Sequence[Tensor],
        causal: Causal,
        layout: Layout,
        scores: Mapping[str, Any],
        cuts: Mapping[str, Tensor | None],
        extra_words: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Sharded | None, Call, Plan]:
        """The call on which all ranks agree, also on `extra_words`, its plan, and how its DTensors are
        sharded.
        """

        def read_all() -> RankCall[tuple[Sharded | None, Call]]:
            sharded, (q, k, v) = local_of(tensors, 1 if layout == "bshd" else 2, self.sharding)
            call = read(peers.caller, q, k, v, causal, layout, scores, cuts)
            peers.require_device("q", call.q)
            return RankCall((sharded, call), {**self._words(), **call.words, **extra_words}, call.numbers)

        (sharded, call), every = agreed(peers, read_all)
        problem = problem_of(peers.caller, call, self.sharding, every)
        _, plan = chosen(problem, self.scheme, self.degree, self.machine)
        return sharded, call, plan

    def _words(self) -> dict[str, str]:
        """The settings that must be equal on all ranks, by name, as words to compare."""
        return {
            "layout of shards": self.sharding.layout,
            "scheme": self.scheme,
            "degree": str(self.degree),
            "machine": str(self.machine),
        }


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    shard_layout: ShardLayout = "zigzag",
    scheme: Scheme | Literal["auto"] = _AUTO,
    **arguments: Any,
) -> Any:
    """`ContextParallel(group, shard_layout, scheme).attention(q, k, v, ...)`, of local shards or DTensors."""
    return ContextParallel(group, shard_layout, scheme).attention(q, k, v, **arguments)


class _Attention(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """The autograd function of one call of `ContextParallel.attention`."""

    @staticmethod
    def forward(
        ctx: Any,
        engine: Engine,
        of: ContextParallel,
        names: tuple[str, ...],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *arrays: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = q.detach(), k.detach(), v.detach()
        of.traffic = Traffic()
        by_name = dict(zip(names, arrays, strict=True))
        results, residuals, moved = engine.forward(q, k, v, by_name, of.traffic)
        of.peers.calls.sending = False  # recomputation for a checkpoint may end when tensors are saved
        ctx.engine, ctx.of, ctx.call = engine, of, of.peers.calls.agreed
        ctx.names, ctx.moved = names, tuple(moved)
        ctx.save_for_backward(*residuals, *arrays, *moved.values())
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(results[2])
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _: None) -> tuple[Any, ...]:
        engine, of = ctx.engine, ctx.of
        peers = of.peers.named(f"gradients of {of.peers.caller}")
        saved: tuple[Tensor | None, ...] = ()
        lost: RuntimeError | None = None
        try:
            saved = ctx.saved_tensors  # with checkpoints, by calls of their own
        except RuntimeError as error:
            lost = error

        def read_all() -> RankCall[tuple[Forward, Arrays, Arrays]]:
            if lost is not None:
                raise lost
            count, end = len(Forward._fields), len(Forward._fields) + len(ctx.names)
            by_name = dict(zip(ctx.names, saved[count:end], strict=True))
            value: Any = Forward(*saved[:count]), by_name, dict(zip(ctx.moved, saved[end:], strict=True))
            words = {"the call to differentiate": f"number {ctx.call} on the group"}
            return RankCall(value, words, (dlse is not None,))

        with peers.exclusive_call():
            (residuals, arrays, moved), every = agreed(peers, read_all)
            flags = ctx.needs_input_grad[len(ctx.needs_input_grad) - len(arrays) :]
            into = {
                name: torch.zeros(array.shape, dtype=torch.float32, device=array.device)
                for (name, array), flag in zip(arrays.items(), flags, strict=True)
                if flag
            }
            p, rows = engine.plan.problem, engine.plan.rows(peers.rank)[0]
            if dout is None:
                dout = residuals.out.new_zeros((p.batch, p.heads, rows, p.head_dim_v))
            if dlse is None and any(has_dlse for (has_dlse,) in every):
                dlse = residuals.lse.new_zeros((p.batch, p.heads, rows))
            of.gradient_traffic = Traffic()
            dout = dout.contiguous()
            gradients = engine.backward(dout, dlse, residuals, arrays, moved, into, of.gradient_traffic)
        of_arrays = [into[n].to(array.dtype) if n in into else None for n, array in arrays.items()]
        return (None, None, None, *gradients, *of_arrays)


class _Unshard(torch.autograd.Function):  # type: ignore[misc]  # torch is not analysed
    """The autograd function of `ContextParallel.unshard`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: int, rows: list[int], peers: Peers, of: ContextParallel) -> Tensor:
        forms = {p: [Form((*x.shape[:axis], rows[p], *x.shape[axis + 1 :]), x.dtype)] for p in peers.others}
        received = peers.start({p: [x] for p in peers.others}, forms, "rows of a shard", x).wait()
        whole = x.new_empty((*x.shape[:axis], sum(rows), *x.shape[axis + 1 :]))
        for rank in range(peers.world):
            part = x if rank == peers.rank else received[rank][0]
            for run in of.sharding.runs(rank, sum(rows)):
                whole.movedim(axis, 0)[run.positions] = part.movedim(axis, 0)[run.rows]
        ctx.of, ctx.axis = of, axis
        return whole

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, dwhole: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.of._local_rows(dwhole, ctx.axis), None, None, None, None
