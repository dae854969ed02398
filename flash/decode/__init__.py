"""Attention over a cache by kernels, in parts where there are few CTAs, and their merging."""
