"""The parts of commands: options, arguments, findings, progress, output."""
