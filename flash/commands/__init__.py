"""The command line `ptxgen`: each command parses its arguments, calls the library and prints."""
