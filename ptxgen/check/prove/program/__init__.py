"""What both ways to prove read of a program: its paths, values and accesses."""
