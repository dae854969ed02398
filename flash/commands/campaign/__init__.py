"""The mutation campaign behind `tools/mutate.py`."""
