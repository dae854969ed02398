"""What changes no value or stops the kernel (PTX ISA, "Miscellaneous Instructions")."""
