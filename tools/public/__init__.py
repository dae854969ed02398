"""Widely used kernels of other projects, run on the interpreter and compared with PyTorch and numpy."""
