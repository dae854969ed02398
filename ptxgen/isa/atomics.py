"""Atomic operations, reductions in memory, fences (PTX ISA, "Parallel Synchronization")."""
