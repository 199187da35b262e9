"""Cluster metadata: the image, the controller, the broker registration, and the store behind them."""
