"""Measurements of kernels on a GPU and of their machine code, as `ptxgen tune` ranks tiles by them."""
