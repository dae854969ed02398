"""Command lines: each parses arguments, calls the library and prints."""
