"""Attention by others: PyTorch's CPU kernels and the ONNX `Attention` operator, in float64.

Each takes q [batch, heads, seq_q, d], k and v [batch, kv_heads, seq_k, …] and the imported package
(the fixtures `torch` and `onnx` of conftest.py, which skip or fail where it is missing).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def torch_attention(
    torch: ModuleType, q: Array, k: Array, v: Array, *, causal: str = "", scale: float | None = None
) -> Array:
    """`scaled_dot_product_attention`; bottom-right causality is an explicit mask."""
    mask = None
    if causal == "bottom_right":
        seq_q, seq_k = q.shape[2], k.shape[2]
        mask = torch.ones(seq_q, seq_k, dtype=torch.bool).tril(seq_k - seq_q)
    out = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(np.ascontiguousarray(x, np.float64)) for x in (q, k, v)),
        attn_mask=mask,
        is_causal=causal == "top_left",
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return np.asarray(out.numpy())


def onnx_attention(
    onnx: ModuleType, q: Array, k: Array, v: Array, *, causal: str = "", scale: float | None = None
) -> Array:
    """The operator of opset 25 or later, by ONNX's reference evaluator.

    Its causality is top-left, and bottom-right when it is told how many keys are no padding.
    """
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator
    helper, kind = onnx.helper, onnx.TensorProto.DOUBLE
    feeds = {name: np.asarray(x, np.float64) for name, x in zip("QKV", (q, k, v), strict=True)}
    inputs = [helper.make_tensor_value_info(name, kind, x.shape) for name, x in feeds.items()]
    names = ["Q", "K", "V"]
    if causal == "bottom_right":
        names += ["", "", "", "lengths"]
        feeds["lengths"] = np.full(q.shape[0], k.shape[2], np.int64)
        inputs.append(
            helper.make_tensor_value_info("lengths", onnx.TensorProto.INT64, (q.shape[0],))
        )
    options: dict[str, Any] = {} if scale is None else {"scale": scale}
    node = helper.make_node("Attention", names, ["Y"], is_causal=int(bool(causal)), **options)
    output = helper.make_tensor_value_info("Y", kind, (*q.shape[:3], v.shape[3]))
    graph = helper.make_graph([node], "attention", inputs, [output])
    opset = onnx.defs.onnx_opset_version()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return np.asarray(evaluator(model).run(None, feeds)[0])
