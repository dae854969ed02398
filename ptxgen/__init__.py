"""A toolkit that generates, checks, runs and caches NVIDIA PTX."""
