"""What a launch passes to a kernel: element types, and how arrays and scalars are declared."""
