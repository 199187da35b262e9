"""Deletes records as the handler of DeleteRecords does."""

from kbroker.replica.partition import Partition
from kbroker.replica.replica_manager import ReplicaManager


async def delete_records(replicas: ReplicaManager, partition: Partition, offset: int) -> None:
    replicas.delete_records(partition, offset)
    await replicas.store_log_starts()
