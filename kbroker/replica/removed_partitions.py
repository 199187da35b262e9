"""What the metrics need of partitions that this broker has no more."""

from kbroker.replica.partition import Partition


class RemovedPartitionTotals:
    """Totals of partitions that were removed from this broker, so that the metrics never decrease."""

    __slots__ = ("bytes_in", "reassignment_bytes_in", "records_in", "replication_bytes_in")

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.replication_bytes_in = self.reassignment_bytes_in = 0

    def add(self, partition: Partition) -> None:
        self.records_in += partition.records_in
        self.bytes_in += partition.bytes_in
        self.replication_bytes_in += partition.replication_bytes_in
        self.reassignment_bytes_in += partition.reassignment_bytes_in
