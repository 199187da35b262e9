"""The producer state of a partition (KIP-98): sequences, open transactions, verification (KIP-890), snapshots."""
