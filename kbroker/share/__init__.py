"""Share groups on the leader of a partition (KIP-932): which member has which records, and what they acknowledged."""
