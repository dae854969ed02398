"""What is done to scores and weights: each feature is one file, and all others loop over the list."""
