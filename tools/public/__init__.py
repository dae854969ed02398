"""Kernels that the public uses, run on the interpreter and compared with PyTorch and numpy."""
