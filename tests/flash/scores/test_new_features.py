"""A new feature of scores is one file and its lines in `features.py`: no backend, adapter or scheme of ranks
names features.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flash

FLASH = Path(flash.__file__).parent
NEW = Path(__file__).with_name("new_features")


def with_features(text: str, **before: str) -> str:
    """`features.py` with new features that have a number for each head, each in front of another."""
    for name, other in before.items():
        kind = name.capitalize()
        kinds = f"{kind}, {kind}Arguments, {kind}Settings"
        for result, new in (
            (r"(?=from flash\.scores\.alibi)", f"from flash.scores.{name} import {kinds}\n"),
            (rf"(?<=,\n)(?=    {other},\n    [ABM])", f"    {kind},\n"),
            (r"(?=    AlibiSettings,)", f"    {kind}Settings,\n"),
            (r"(?<=class HeadArguments\()", f"{kind}Arguments, "),
            (r"(?<=            AuxArguments,\n)", f"            {kind}Arguments,\n"),
        ):
            text, count = re.subn(result, new, text)
            assert count == 1, (name, result)
    return text


@pytest.mark.slow
def test_a_feature_is_one_file_and_its_lines(tmp_path: Path, torch: object) -> None:  # noqa: ARG001
    for module in ("jax", "numba", "transformers"):
        pytest.importorskip(module)
    scores = tmp_path / "flash" / "scores"
    scores.mkdir(parents=True)
    for folder, link, without in (
        (FLASH, scores.parent, "scores"),
        (FLASH / "scores", scores, "features.py"),
    ):
        for path in folder.iterdir():
            if path.name != without:
                (link / path.name).symlink_to(path)
    for name in ("drift", "temperature"):
        (scores / f"{name}.py").symlink_to(NEW / f"{name}.py")
    text = (FLASH / "scores" / "features.py").read_text()
    (scores / "features.py").write_text(with_features(text, temperature="ScoreMod", drift="Alibi"))
    paths = os.pathsep.join([str(tmp_path), str(FLASH.parent), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, str(NEW / "everywhere.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
