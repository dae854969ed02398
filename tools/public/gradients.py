"""A function of PyTorch and its gradients, compared with a reference in float64."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from tools.public.trial import Trial

TOLERANCE: Final = 1e-5  # of sums of some hundred products in float32


def compare(
    trial: Trial,
    function: Callable[..., Any],
    reference: Callable[..., Any],
    shapes: Sequence[Sequence[int]],
    *,
    tolerance: float = TOLERANCE,
    fusion: bool = False,
) -> None:
    """Run `function` on random float32 tensors, and its gradients, on the interpreter, and compare
    the result and the gradient of each tensor with those of `reference`, in float64.
    """
    torch = importlib.import_module("torch")
    chance = torch.Generator().manual_seed(1)
    inputs = [torch.randn(*shape, generator=chance) for shape in shapes]
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    for tensor in inputs:
        tensor.requires_grad_()
    wanted = reference(*exact)
    upstream = torch.randn(wanted.shape, generator=chance)
    wanted.backward(upstream.double())
    with trial.triton(fusion=fusion):
        # An own tensor: kernels that work in place do so on memory that nothing else reads.
        got = function(*(tensor * 1.0 for tensor in inputs))
        result = got.detach().clone()
        got.backward(upstream.clone())
    trial.close("the result", result, wanted, tolerance)
    for n, (tensor, expected) in enumerate(zip(inputs, exact, strict=True)):
        trial.close(f"gradient {n}", tensor.grad, expected.grad, tolerance)
