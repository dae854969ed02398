"""Asynchronous warpgroup matrix multiplication (PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions").
"""
