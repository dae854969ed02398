"""Mutation testing of kernels: each mutant has one small mistake, and a check must notice it."""
