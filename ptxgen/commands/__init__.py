"""The program `ptxgen` and its commands: each parses its arguments, calls the library and prints."""
