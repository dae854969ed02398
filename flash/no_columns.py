"""Calls whose values have no columns (head_dim_v 0): out has no elements, as that of a batch without items.
Log-sum-exps and largest scores are those of the keys: the kernel that computes them reads the keys as values.
"""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from flash.calls.operation import Result
from flash.host import results
from flash.host.caller import Caller, raise_problems, readable_views
from flash.kernel import AttentionKernel
from flash.launch.arguments import out_problems
from flash.launch.signature import ForwardArguments
from flash.operands.dtype_names import AnyArray, Backend, Layout
from ptxgen.arrays import streams
from ptxgen.arrays.views import ArrayView
from ptxgen.runtime.settings import AUTO


class AttentionOfNoColumns(AttentionKernel):
    """An `AttentionKernel` whose head_dim_v is head_dim, for values without columns."""

    _caller: ClassVar[Caller]

    def launch(
        self,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray | None = None,
        *,
        out: AnyArray | None = None,
        stream: object = None,
        backend: Backend = AUTO,
        return_lse: bool | None = None,
        return_max_logit: bool | None = None,
        layout: Layout = "bhsd",
        softmax_scale: float | None = None,
        **arguments: Unpack[ForwardArguments],
    ) -> Any:
        """out, whose last dimension is 0, and what else is asked for; as `AttentionKernel.launch`."""
        caller = self._caller.name
        how: dict[str, Any] = {"layout": layout, "softmax_scale": softmax_scale, **arguments}
        shape, *_ = self.result_shapes(q, k, v, **how)
        views = readable_views({"q": q} | ({} if out is None else {"out": out}), caller)
        like = views["q"]
        raise_problems(out_problems(views.get("out"), shape), caller)
        handle = None if stream is None else streams.stream_handle(stream, caller)
        self._forward.choose(backend, like, handle)
        result: object = out
        if out is None:
            declared = [Result("out", like, shape, self.config.output)]
            result = results.deliver(self._forward.new(declared, handle)[0]["out"], like)
        if not (return_lse or return_max_logit):
            return result
        how |= {"return_lse": return_lse, "return_max_logit": return_max_logit}
        return (result, *super().launch(q, k, k, stream=stream, backend=backend, **how)[1:])

    def result_shapes(self, q: object, k: object, v: object = None, **how: Any) -> Any:
        """The shapes of results as `AttentionKernel.result_shapes` gives them; O has no columns."""
        raise_problems(
            problems_of_rows(readable_views({"k": k, "v": v}, self._caller.name)), self._caller.name
        )
        of_out, *of_others = super().result_shapes(q, k, k, **how)
        return ((*of_out[:-1], 0), *of_others)


def problems_of_rows(views: dict[str, ArrayView]) -> list[str]:
    """Say why v, which has no columns, is refused: it has another number of rows or another type than k."""
    k, v = views["k"], views["v"]
    if tuple(v.shape[:-1]) == tuple(k.shape[:-1]) and v.dtype == k.dtype:
        return []
    wanted = [*k.shape[:-1], 0]
    return [f"v must be {wanted} of {k.dtype}, as many rows as k, got {list(v.shape)} of {v.dtype}"]
