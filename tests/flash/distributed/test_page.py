"""The programs of docs/distributed.md run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import flash.distributed

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
_DEADLINE_S = 120


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(3))
def test_a_program_of_the_page_runs_on_two_ranks(number: int, torch: ModuleType, tmp_path: Path) -> None:  # noqa: ARG001
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 3
    path = tmp_path / "program.py"
    path.write_text(programs[number], encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(path)],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_page_has_every_public_name() -> None:
    for name in flash.distributed.__all__:
        assert re.search(rf"\b{name}\b", PAGE), name


def test_an_import_costs_nothing_until_a_name_is_used() -> None:
    program = (
        "import sys, flash; assert not [m for m in sys.modules if m.startswith('flash.distributed')]\n"
        "from flash.distributed import Plan, Sharding\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError) as error:
        flash.distributed.Ring  # type: ignore[attr-defined]  # noqa: B018
    assert str(error.value) == (
        "module 'flash.distributed' has no attribute 'Ring'; it has ContextParallel, Machine, Plan, Problem, "
        "ShardedKVCache, Sharding, Traffic, attention"
    )
