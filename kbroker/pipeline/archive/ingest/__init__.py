"""`archive run`: Spark's streaming query from topics into commits."""
