"""DescribeReplicaLogs (key 10021), version 0, between brokers only: how far the logs of this broker go. Not in Kafka.

- The controller compares the logs of all brokers to find the leader of a partition whose ISR is unknown
  (kbroker/metadata/recovery).
- `leader_epoch` is the last one in the log: the records at its end are of this epoch or of an earlier one.
- A log that is set aside counts: it is opened again when its partition is assigned to this broker.
- A log that cannot be read has the error KAFKA_STORAGE_ERROR: the controller must not take it for an empty one.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.replica.replica_manager import ReplicaManager
from protocol.errors import ErrorCode
from protocol.messages.k10021_describe_replica_logs import (
    DescribeReplicaLogsRequest,
    DescribeReplicaLogsResponse,
    DescribeReplicaLogsResponsePartition,
    DescribeReplicaLogsResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: DescribeReplicaLogsRequest
) -> DescribeReplicaLogsResponse:
    return DescribeReplicaLogsResponse(
        topics=[
            DescribeReplicaLogsResponseTopic(
                topic_id=topic.topic_id,
                partitions=[await _describe(services.replicas, topic.topic_id, index) for index in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _describe(replicas: ReplicaManager, topic_id: bytes, index: int) -> DescribeReplicaLogsResponsePartition:
    row = DescribeReplicaLogsResponsePartition(partition_index=index)
    partition = replicas.get(topic_id, index)
    if partition is not None and partition.log.health.offline is None and not partition.is_closed:
        log = partition.log
        row.leader_epoch, row.log_start_offset = log.epochs.latest, log.log_start_offset
        row.log_end_offset = log.log_end_offset
        return row
    if partition is not None or any(
        tp.partition == index and unopened == topic_id for tp, unopened in replicas.maintenance.unopened.items()
    ):
        row.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return row
    try:
        stray = await replicas.logs.stray_position(topic_id, index)
    except OSError:
        row.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return row
    if stray is None:
        row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        row.leader_epoch, row.log_start_offset, row.log_end_offset = stray
    return row
