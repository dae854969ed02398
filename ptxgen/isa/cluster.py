"""Clusters of CTAs (PTX ISA, "barrier.cluster", "mapa", "getctarank")."""
