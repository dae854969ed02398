"""Attention over a KV cache by kernels, with split keys where CTAs are few, and the merge."""
