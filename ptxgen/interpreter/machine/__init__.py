"""What executes: memory, barriers, copies and registers of a batch of CTAs."""
