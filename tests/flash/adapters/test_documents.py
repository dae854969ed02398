"""The programs of docs/frameworks.md."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flash

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "frameworks.md").read_text()


def run(section: str) -> dict[str, Any]:
    """What the programs of a section leave, which are run one after another."""
    body = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    programs = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    result: dict[str, Any] = {}
    for program in programs:
        exec(compile(program, f"docs/frameworks.md, {section}", "exec"), result)
    assert programs
    return result


@pytest.mark.slow
def test_hugging_face(torch: ModuleType, transformers: ModuleType) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is small
    torch.manual_seed(0)  # its weights
    result = run("Hugging Face")
    torch.set_num_threads(threads)
    for registry in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        assert registry._global_mapping.pop("ptxgen")
    assert result["text"].tolist() == result["eager"].tolist()
    assert result["text"].shape == (2, 15)
    assert result["cache"].get_seq_length() == 14
    assert result["losses"][-1] < result["losses"][0] / 4


def test_jax(jax: ModuleType) -> None:
    result = run("JAX")
    q, k, v = (np.asarray(result[name]) for name in "qkv")
    assert [x.shape for x in result["gradients"]] == [q.shape] * 3
    for n, several in enumerate(result["several"]):
        np.testing.assert_allclose(several, flash.attention((n + 1) * q, k, v), rtol=1e-5, atol=1e-6)
    assert isinstance(result["out"], jax.Array)
    assert result["used"].tolist() == [3, 3]
    last = result["token"][0][:, :, None]
    keys, values = (np.asarray(x).reshape(2, 16, 4, 8)[:, :3].swapaxes(1, 2) for x in result["cache"])
    wanted = flash.attention(last, keys, values)[:, :, 0]
    np.testing.assert_allclose(result["out"], wanted, rtol=1e-5, atol=1e-6)
