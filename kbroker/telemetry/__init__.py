"""Client telemetry (KIP-714): which clients report which metrics, and what they have reported."""
