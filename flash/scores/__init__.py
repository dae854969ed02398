"""What is done to scores and weights: one file for each feature, and the list of them."""
