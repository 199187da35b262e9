"""The partitions on this broker: appends, fetches, high watermarks, and their logs."""
