"""The rows and pages of each cached sequence, and the undo of a call that fails."""
