"""Packages for a machine without a package index: wheels in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ptxgen.commands.parts.files import FileError


def installed(wheels: Path, site: Path) -> str:
    """Install all wheels of a folder into the folder `site`; returns the PYTHONPATH that imports them. Raises
    `FileError` if there are none, or pip refuses one.
    """
    result = sorted(str(path.resolve()) for path in wheels.glob("*.whl"))
    if not result:
        raise FileError(f"--wheels {wheels}: there are no wheels; pip download -d {wheels} fetches them")
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-compile"]
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(site), *result],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise FileError(f"--wheels {wheels}: pip install failed: {ran.stderr.strip().splitlines()[-1]}")
    return os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
