"""The broker's configuration and the checks that it must pass."""
