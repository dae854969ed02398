"""What is asked, and the rules that need no GPU: configurations, tilings, limits, types."""
