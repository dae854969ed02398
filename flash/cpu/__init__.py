"""Attention in numpy, blocked, for machines without a GPU."""
