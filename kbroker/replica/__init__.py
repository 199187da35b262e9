"""The partitions that this broker holds: appends, fetches, high watermarks, and their logs."""
