"""Gradients of attention: a call checked, planned and run on every backend."""
