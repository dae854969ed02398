"""The parts of `tools/gpu_session.py`, what runs in their processes, and what is stored of them."""
