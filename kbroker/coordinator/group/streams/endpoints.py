"""The endpoints of the members of a streams group, and the partitions that they serve (pure).

Applications find the instance that has a key of a store with them (interactive queries).
"""

from collections.abc import Iterable

from kbroker.coordinator.group.modern.subscribed_topics import SubscribedTopics
from kbroker.coordinator.group.streams.streams_group_member import StreamsGroupMember
from kbroker.coordinator.group.streams.tasks import TaskId
from kbroker.runtime.turns import paced
from protocol.messages.k88_streams_groups import EndpointToPartitions, EndpointTopicPartitions
from protocol.messages.streams_group_records import StreamsGroupTopologyValue


def endpoint_partitions(
    topology: StreamsGroupTopologyValue, members: Iterable[StreamsGroupMember], topics: SubscribedTopics
) -> list[EndpointToPartitions]:
    """Return the partitions of the topics that the tasks of each member with an endpoint read."""
    sources = {
        each.subtopology_id: [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
        for each in topology.subtopologies
    }
    counts = {
        name: topic.partition_count for name, topic in topics.existing({t for own in sources.values() for t in own})
    }

    def partitions(tasks: Iterable[TaskId]) -> list[EndpointTopicPartitions]:
        by_topic: dict[str, list[int]] = {}
        for subtopology_id, partition in sorted(tasks):
            for topic in sources.get(subtopology_id, ()):
                if partition < counts.get(topic, 0):
                    by_topic.setdefault(topic, []).append(partition)
        return [EndpointTopicPartitions(topic=topic, partitions=found) for topic, found in by_topic.items()]

    return [
        EndpointToPartitions(
            user_endpoint=member.endpoint.struct,
            active_partitions=partitions(member.assigned.active),
            standby_partitions=partitions(member.assigned.standby),
        )
        for member in paced(members)
        if member.endpoint is not None
    ]
