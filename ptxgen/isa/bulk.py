"""Bulk and tensor copies (PTX ISA, "Data Movement: Bulk Asynchronous Copy")."""
