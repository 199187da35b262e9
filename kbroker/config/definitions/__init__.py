"""The config tables: one row a config. Adding a config is adding its row here."""
