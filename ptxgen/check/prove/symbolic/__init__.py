"""To prove by polynomials: addresses in global memory, whatever the strides are."""
