"""Attention by others: PyTorch's CPU kernels and the ONNX `Attention` operator, in float64.

Each takes q [batch, heads, seq_q, d], k and v [batch, kv_heads, seq_k, …] and the imported package
(the fixtures `torch` and `onnx` of conftest.py, which skip or fail where it is missing). `bias` and
`mask` [batch, heads, seq_q, seq_k] are added to scaled scores, and show keys where they are true.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def torch_attention(
    torch: ModuleType,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: str = "",
    scale: float | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """`scaled_dot_product_attention`; bottom-right causality is an explicit mask, and with a bias
    or a mask causality is part of that.
    """
    plane = None if bias is None and mask is None else torch.from_numpy(_plane(bias, mask))
    seq_q, seq_k = q.shape[2], k.shape[2]
    if causal == "bottom_right" or (causal and plane is not None):
        shown = torch.ones(seq_q, seq_k, dtype=torch.bool)
        shown = shown.tril(seq_k - seq_q if causal == "bottom_right" else 0)
        plane = shown if plane is None else torch.where(shown, plane, -torch.inf)
    out = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(np.ascontiguousarray(x, np.float64)) for x in (q, k, v)),
        attn_mask=plane,
        is_causal=causal == "top_left" and plane is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return np.asarray(out.numpy())


def onnx_attention(
    onnx: ModuleType,
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: str = "",
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """The operator of opset 25 or later, by ONNX's reference evaluator; of opset 27 or later with a
    window.

    Its causality and its windows are top-left, and bottom-right when it is told how many keys are
    no padding.
    """
    evaluator = importlib.import_module("onnx.reference").ReferenceEvaluator
    helper, kind = onnx.helper, onnx.TensorProto.DOUBLE
    feeds = {name: np.asarray(x, np.float64) for name, x in zip("QKV", (q, k, v), strict=True)}
    if bias is not None or mask is not None:
        feeds["plane"] = _plane(bias, mask)
    inputs = [helper.make_tensor_value_info(name, kind, x.shape) for name, x in feeds.items()]
    names = ["Q", "K", "V", "plane" if "plane" in feeds else ""]
    if causal == "bottom_right" or (window and not causal):
        names += ["", "", "lengths"]
        feeds["lengths"] = np.full(q.shape[0], k.shape[2], np.int64)
        inputs.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT64, (q.shape[0],)))
    left, right = window or (None, None)
    arguments = {"scale": scale, "softcap": softcap, "left_window_size": left, "right_window_size": right}
    options = {name: value for name, value in arguments.items() if value is not None}
    node = helper.make_node("Attention", names, ["Y"], is_causal=int(bool(causal)), **options)
    output = helper.make_tensor_value_info("Y", kind, (*q.shape[:3], v.shape[3]))
    graph = helper.make_graph([node], "attention", inputs, [output])
    opset = onnx.defs.onnx_opset_version()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return np.asarray(evaluator(model).run(None, feeds)[0])


def _plane(bias: Array | None, mask: Array | None) -> Array:
    """Both as one bias."""
    shown = np.where(True if mask is None else mask, 0.0, -np.inf)
    return np.asarray(shown if bias is None else shown + bias)
