"""`ldmatrix`, `stmatrix` and `movmatrix` (PTX ISA, "Warp Level Matrix Instructions")."""
