"""Pure state machines: no clock, no disk, no network."""
