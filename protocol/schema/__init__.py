"""Messages declared as rows: generated codecs, and the construct grammar as their reference."""
