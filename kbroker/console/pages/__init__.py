"""The pages of the console, one file a view. Each has `routes`, which kbroker/console/app.py lists."""
