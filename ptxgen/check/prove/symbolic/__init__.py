"""Proofs by polynomials: addresses in global memory, whatever the strides are."""
