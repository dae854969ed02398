"""The pieces that kernels are made of, one idea in each file."""
