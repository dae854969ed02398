"""Attention: configurations, kernels, references and the launch object."""
