"""The kernels; each reads like the paper that it implements."""
