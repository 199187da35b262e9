"""Followers: fetches records from the leaders of this broker's partitions."""
