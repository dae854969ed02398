"""Prints the kernels with which to test OpenBLAS on this CPU, besides those that it picks itself.

`make blas` sets `OPENBLAS_CORETYPE` to each. Kernels whose instructions this CPU lacks end the
process that calls them: such kernels are left out, and stderr says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

# Processors whose kernels sum in different orders: 8, 16 and 4 numbers at a time.
NAMES: Final = ("Haswell", "SkylakeX", "Prescott")

# Multiplies in both precisions, and prints the kernels' processor; nothing without OpenBLAS.
PROBE: Final = """
import numpy, threadpoolctl
for dtype in (numpy.float32, numpy.float64):
    a = numpy.ones((96, 96), dtype)
    assert (a @ a == 96).all() and (a @ a[0] == 96).all()
pools = threadpoolctl.threadpool_info()
print(next((pool["architecture"] for pool in pools if "architecture" in pool), ""))
"""


def architecture(name: str) -> str | None:
    """OpenBLAS's name of the processor whose kernels it uses when asked for `name` ("" for its own
    choice); "" for another library, None if the process crashes with these kernels.
    """
    env = {key: value for key, value in os.environ.items() if key != "OPENBLAS_CORETYPE"}
    if name:
        env["OPENBLAS_CORETYPE"] = name
    done = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """Print the names of kernels to test, one on each line."""
    default = architecture("")
    for name in NAMES:
        actual = architecture(name)
        if actual is None:
            print(f"blas_kernels: {name} is left out; this CPU lacks its instructions", file=sys.stderr)
        elif actual != default:
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
