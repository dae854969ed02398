"""The parts of developers' commands."""
