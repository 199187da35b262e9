"""The definitions of all configs, one ConfigKey each. Adding a config means adding its ConfigKey here."""
