"""Closing partitions: the highest partitions of a topic, whose new records are forwarded to those that remain."""
