"""Proofs about tensor memory: its allocations, and the lanes and columns that instructions use."""
