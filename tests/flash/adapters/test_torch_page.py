"""The examples for PyTorch run: of docs/frameworks.md, docs/backward.md and docs/training.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_examples(torch: Any) -> None:
    torch.manual_seed(0)
    section = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith("PyTorch\n"))
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code) >= 5
    names: dict[str, Any] = {}
    for block in code:
        exec(compile(block, "docs/frameworks.md", "exec"), names)


def program(page: str, adapter: str) -> str:
    """The only program of a page that imports an adapter."""
    text = (ROOT / page).read_text(encoding="utf-8")
    result = [p for p in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"adapters.{adapter} " in p]
    assert len(result) == 1
    return str(result[0])


@pytest.mark.slow
def test_the_model_of_the_start_page_learns_in_ten_lines(torch: Any) -> None:
    text = program("docs/training.md", "torch")
    assert len([line for line in text.splitlines() if line]) <= 10
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is small
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile(text, "docs/training.md", "exec"), names)
    torch.set_num_threads(threads)
    assert names["loss"] < 0.01


@pytest.mark.parametrize("library", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_the_examples_of_gradients(library: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(library)
    names: dict[str, Any] = {}
    exec(compile(program("docs/backward.md", library), "docs/backward.md", "exec"), names)
    for gradient, of in zip(names["gradients"], names["wanted"], strict=True):
        np.testing.assert_allclose(gradient, of, atol=1e-5, rtol=1e-5)


def test_every_public_name_is_on_the_page(torch: Any) -> None:
    import flash.adapters.torch

    assert torch
    for name in flash.adapters.torch.__all__:
        assert re.search(rf"\b{name}\b", PAGE), name
