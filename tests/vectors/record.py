"""Record on a GPU what its instructions give: `python tests/vectors/record.py`."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(tests), str(tests.parent)]  # as `pythonpath` of pyproject.toml does
    from vectors.recording import main

    sys.exit(main())
