"""AssignReplicasToDirs (key 73), version 0, between brokers only: a broker reports replicas whose logs have failed, or
whether it can write to its disk.

- Each log fails alone, since a broker has one log directory. As in Kafka a replica in the directory LOST is offline: it
  leaves the in-sync and the eligible leader replicas, and another one leads, if another one is in sync.
- A new leader epoch begins. The replica does not follow it, so it joins again only after its broker has been restarted,
  or has opened the log.
- The ids in disk_reports.py are kbroker's own: the broker reports whether it can write to its disk.
- Other directory ids have no effect.
- A broker that is not the controller relays the request of one that may be cut off from the controller.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.forwarding import relay_to_controller
from kbroker.replica.logs.disk_reports import DIRECTORY_IDS, LOST_DIRECTORY
from protocol.messages.k73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestTopic,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectory,
    AssignReplicasToDirsResponsePartition,
    AssignReplicasToDirsResponseTopic,
)


async def handle(
    services: Services, context: RequestContext, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    relayed = await relay_to_controller(services, context, request, AssignReplicasToDirsResponse)
    if relayed is not None:
        return relayed
    failed = [
        (topic.topic_id, partition.partition_index)
        for directory in request.directories
        if directory.id == LOST_DIRECTORY
        for topic in directory.topics
        for partition in topic.partitions
    ]
    ids = [directory.id for directory in request.directories]
    healths = [health for health, directory_id in DIRECTORY_IDS.items() if directory_id in ids]
    for health in healths:
        await services.controller.replication.set_write_health(request.broker_id, request.broker_epoch, health)
    if not healths:
        await services.controller.replication.remove_failed_replicas(request.broker_id, request.broker_epoch, failed)
    return AssignReplicasToDirsResponse(
        directories=[
            AssignReplicasToDirsResponseDirectory(id=directory.id, topics=list(map(_result, directory.topics)))
            for directory in request.directories
        ]
    )


def _result(topic: AssignReplicasToDirsRequestTopic) -> AssignReplicasToDirsResponseTopic:
    partitions = [
        AssignReplicasToDirsResponsePartition(partition_index=partition.partition_index)
        for partition in topic.partitions
    ]
    return AssignReplicasToDirsResponseTopic(topic_id=topic.topic_id, partitions=partitions)
