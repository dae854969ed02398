"""Families of forward kernels: for each, in a module of its own, what it computes, its tilings and what emits
it, and why it does not take a problem; `choice.py` has the order in which a problem asks them.
"""
