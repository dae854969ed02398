"""Arrays of any library: views without a copy, copies on a GPU, streams."""
