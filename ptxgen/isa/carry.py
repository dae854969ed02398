"""Extended-precision integer arithmetic (PTX ISA, section of that name)."""
