"""The hand-written codecs of Produce and Fetch."""
