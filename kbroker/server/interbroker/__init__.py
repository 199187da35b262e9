"""The listener for brokers: its connections, and how their requests are served."""
