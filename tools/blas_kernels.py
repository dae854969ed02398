"""Prints with which kernels OpenBLAS is to be tested on this CPU, besides those that it picks.

`make blas` sets `OPENBLAS_CORETYPE` to each. Kernels whose instructions this CPU lacks end the
process that calls them: these are left out, and stderr says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

# The processors whose kernels sum in different orders: of 8, 16 and 4 numbers at a time.
NAMES: Final = ("Haswell", "SkylakeX", "Prescott")

# Multiplies in both precisions, and prints whose kernels did it; nothing if that is not OpenBLAS.
PROBE: Final = """
import numpy, threadpoolctl
for dtype in (numpy.float32, numpy.float64):
    a = numpy.ones((96, 96), dtype)
    assert (a @ a == 96).all() and (a @ a[0] == 96).all()
pools = threadpoolctl.threadpool_info()
print(next((pool["architecture"] for pool in pools if "architecture" in pool), ""))
"""


def architecture(name: str) -> str | None:
    """Whose kernels OpenBLAS takes when it is told `name` ("" for its own choice): its word for
    them, "" for another library, None if the process does not survive them.
    """
    env = {key: value for key, value in os.environ.items() if key != "OPENBLAS_CORETYPE"}
    if name:
        env["OPENBLAS_CORETYPE"] = name
    done = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """Print one name a line."""
    own = architecture("")
    for name in NAMES:
        found = architecture(name)
        if found is None:
            print(
                f"blas_kernels: {name} is left out; this CPU lacks its instructions",
                file=sys.stderr,
            )
        elif found != own:
            print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
