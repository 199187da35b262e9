"""What the groups of the newer protocols share (KIP-848, KIP-932, KIP-1071): members, epochs, targets, records."""
