"""What a built kernel promises: its proofs, its resources, its contract for other hosts."""
