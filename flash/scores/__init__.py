"""The features that change scores and weights: one file for each, and the list of them."""
