"""The partitions that this broker holds: appends, fetches, high watermarks, background work on logs."""
