"""Totals of removed partitions, for the metrics."""

from kbroker.replica.partition import Partition


class RemovedPartitionTotals:
    """Totals of the partitions that were removed from this broker. With them the metrics never decrease."""

    __slots__ = ("bytes_in", "reassignment_bytes_in", "records_in", "replication_bytes_in")

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.replication_bytes_in = self.reassignment_bytes_in = 0

    def add(self, partition: Partition) -> None:
        self.records_in += partition.records_in
        self.bytes_in += partition.bytes_in
        self.replication_bytes_in += partition.replication_bytes_in
        self.reassignment_bytes_in += partition.reassignment_bytes_in
