"""The parts of `tools/gpu_session.py`, the code of their processes, and the storage of their results."""
