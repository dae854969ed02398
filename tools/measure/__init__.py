"""What `tools/bench.py` and `tools/tune.py` measure."""
