"""What a Python without numpy makes of a checkout, as JSON: run by tests/test_pythons.py.

Its arguments are the checkout and a folder with jinja2 and markupsafe.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
import warnings
from pathlib import Path

# Packages that a Python in WebAssembly lacks; a module that needs one of them is only compiled.
ABSENT = {
    *("_multiprocessing", "cuda", "ml_dtypes", "multiprocessing", "numpy", "platformdirs", "pytest"),
    "threadpoolctl",
}


def main(root: Path, packages: str) -> None:
    """Compile all files, import the modules that need no numpy, print what happened."""
    warnings.simplefilter("error")
    sys.path[:0] = [str(root), packages]
    compiled, imported, failures = 0, [], []
    for folder in ("ptxgen", "flash", "tools", "tests", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            try:
                compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)
                compiled += 1
            except (SyntaxError, Warning) as error:
                failures.append(f"{path}: {error!r}")
    for package in ("ptxgen", "flash"):
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            try:
                importlib.import_module(name)
                imported.append(name)
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] not in ABSENT:
                    failures.append(f"{name}: {error}")
            except Exception:
                failures.append(f"{name}: {traceback.format_exc()}")
    result = {"version": sys.version_info[:2], "compiled": compiled, "imported": imported}
    sys.stdout.write(json.dumps({**result, "failures": failures}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
