"""Topics as groups see them, and which of them a change of the metadata concerns (pure)."""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.metadata.image import MetadataDelta, MetadataImage, PartitionChange, is_retired
from kbroker.runtime.turns import paced


class GroupTopic(NamedTuple):
    """`racks`: for each partition, the racks of its replicas, as far as they have one."""

    topic_id: bytes
    partition_count: int
    racks: Sequence[Sequence[str]]


def find_topic(metadata: MetadataImage, name: str) -> GroupTopic | None:
    """Return a topic, None if it does not exist. A view has its source's partitions; retired ones are hidden."""
    image = metadata.topics.get(name)
    if image is None:
        return None
    racks_by_broker = {
        broker.id: broker.rack
        for broker in (*metadata.brokers.values(), *metadata.fenced_brokers.values())
        if broker.rack is not None
    }
    racks = [
        [racks_by_broker[replica] for replica in partition.replicas if replica in racks_by_broker]
        for partition in paced(metadata.resolve(image).partitions)
    ]
    return GroupTopic(image.topic_id, len(racks), racks)


def changed_topics(metadata: MetadataImage, delta: MetadataDelta) -> set[str]:
    """Return the topics whose existence, id, number of partitions or replicas have changed, with their views."""
    changed = {topic.name for topic in (*delta.deleted, *delta.missing, *delta.created)}
    # A partition that only has another leader or ISR is the same for groups.
    changed |= {change.tp.topic for change in delta.partitions if _is_moved(change)}
    return {name for topic in changed for name in (topic, *metadata.views.get(topic, ()))}


def _is_moved(change: PartitionChange) -> bool:
    old, new = change.old, change.new
    return old is None or new is None or old.replicas != new.replicas or is_retired(old) != is_retired(new)


def removed_partitions(metadata: MetadataImage, delta: MetadataDelta) -> set[tuple[str, int]]:
    """Return the partitions that topics had and have no longer, as topic and index, also of views."""
    shrunk = {topic.topic_id: topic for topic in delta.updated if topic.removed_from is not None}
    return {
        (topic, tp.partition)
        for tp, topic_id, old, new in delta.partitions
        if (is_retired(new) and not is_retired(old))
        or (new is None and topic_id in shrunk and shrunk[topic_id].is_removed(tp.partition))
        # Groups of the topic's views have offsets of their own.
        for topic in (tp.topic, *metadata.views.get(tp.topic, ()))
    }
