"""Consumer groups (KIP-848): the coordinator assigns the partitions, and each member reconciles on its own."""
