"""Gradients of calls whose values have no columns (`flash/no_columns.py`): those of q and k are for the
log-sum-exps alone, and that of v has no elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from flash.calls.operation import Result, stream_of
from flash.gradients.kernel import AttentionGradient, Gradients
from flash.host import results
from flash.host.caller import Caller, raise_problems, readable_views
from flash.no_columns import problems_of_rows
from flash.operands.dtype_names import AnyArray
from flash.operands.dtypes import OF_ARRAYS
from ptxgen.arrays import streams
from ptxgen.arrays.views import ArrayView, view


class GradientsOfNoColumns(AttentionGradient):
    """An `AttentionGradient` whose head_dim_v is head_dim, for values without columns."""

    _caller: ClassVar[Caller]

    def launch(
        self,
        dout: AnyArray,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        out: AnyArray,
        lse: AnyArray,
        *,
        dv: AnyArray | None = None,
        stream: object = None,
        wanted: Iterable[str] = (),
        **how: Any,
    ) -> Gradients[Any]:
        """The gradients for lse alone, and dv without elements; as `AttentionGradient.launch`."""
        caller = self._caller.name
        views = readable_views({"dout": dout, "q": q, "k": k, "v": v, "out": out}, caller)
        shape = (*views["q"].shape[:-1], 0)
        problems = [
            f"{name} must be {list(shape)}, because v has no columns, got {list(views[name].shape)}"
            for name in ("dout", "out")
            if tuple(views[name].shape) != shape
        ]
        of_dv = None if dv is None else readable_views({"dv": dv}, caller)["dv"]
        if of_dv is not None and tuple(of_dv.shape) != tuple(views["v"].shape):
            problems.append(f"dv must be {list(views['v'].shape)}, as v is, got {list(of_dv.shape)}")
        raise_problems([*problems_of_rows({n: views[n] for n in "kv"}), *problems], caller)
        like = views["q"]
        handle = None if stream is None else streams.stream_handle(stream, caller)
        zeros = self._empty(like, like, handle)
        self._gradient.clear([view(zeros, "dout")], stream_of(like, handle))
        rows: Any = results.deliver(zeros, like)  # in place of out and dout, with k in place of v
        gradients = super().launch(rows, q, k, k, rows, lse, stream=stream, wanted=wanted, **how)
        written: Any = results.deliver(self._empty(views["v"], like, handle), like) if dv is None else dv
        return gradients._replace(dv=written)

    def _empty(self, shaped: ArrayView, like: ArrayView, stream: int | None) -> object:
        """A new array of the library of `like` with the shape of another."""
        declared = [Result("zeros", like, tuple(shaped.shape), OF_ARRAYS[like.dtype])]
        return self._gradient.new(declared, stream)[0]["zeros"]
