"""The parts of commands: options, output, progress."""
