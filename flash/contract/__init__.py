"""Built kernels: their proofs, their resources, and the contracts of their launches for other hosts."""
