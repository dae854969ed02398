"""Analyses that read the IR and never change it: problems, resources and control flow."""
