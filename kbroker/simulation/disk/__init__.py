"""A simulated disk that loses what a real one may lose in a crash."""
