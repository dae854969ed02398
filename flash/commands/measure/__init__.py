"""The measurements of `tools/bench.py` and `tools/tune.py`."""
