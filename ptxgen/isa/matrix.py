"""Matrix multiply-accumulate on a warp's registers: `mma.sync` (PTX ISA, "Warp Level Matrix
Instructions").
"""
