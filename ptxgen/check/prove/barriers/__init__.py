"""The proof of barriers: that the threads a barrier waits for come to it."""
