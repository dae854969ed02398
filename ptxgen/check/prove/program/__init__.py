"""The reading of a program that both kinds of proof share: its paths, values and accesses."""
