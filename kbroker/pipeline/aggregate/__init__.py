"""Live windowed aggregates of topics."""
