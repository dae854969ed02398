"""The kernels; each reads like the paper that it is from."""
