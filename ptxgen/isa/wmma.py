"""`wmma.load`, `wmma.mma` and `wmma.store` (PTX ISA, "Warp Level Matrix Instructions")."""
