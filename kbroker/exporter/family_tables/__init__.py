"""The tables of metric families, by area."""
