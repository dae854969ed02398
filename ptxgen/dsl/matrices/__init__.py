"""Matrices: blocks that travel from global to shared memory, and products on tensor cores."""
