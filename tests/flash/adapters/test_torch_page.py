"""The examples of docs/frameworks.md, section PyTorch, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "frameworks.md").read_text(encoding="utf-8")


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


def test_every_public_name_is_on_the_page(torch: Any) -> None:
    import flash.adapters.torch

    assert torch
    for name in flash.adapters.torch.__all__:
        assert re.search(rf"\b{name}\b", PAGE), name
