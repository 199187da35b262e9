"""Cluster metadata: the image, the controller, this broker's registration, and the store behind them."""
