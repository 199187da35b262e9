"""Views: topics without partitions of their own, from which consumers read selected records of another topic.

A source topic with views cannot be deleted, unless the same request deletes the views.
"""

from collections.abc import Collection, Mapping

from kbroker.common import KafkaError
from kbroker.config.tag_expression import VIEW_OF
from kbroker.metadata.image import TopicImage
from protocol.errors import ErrorCode


def check_new_view(
    source_name: str,
    topics: Mapping[str, TopicImage],
    partitions: int,
    replication_factor: int,
    has_assignments: bool,
) -> None:
    """Raise KafkaError if a topic with these numbers (-1: the default) cannot be a view of the source."""
    source = check_source(source_name, topics)
    if has_assignments:
        message = f"A view has the replicas of its source {source_name}."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    count = source.listed_partitions
    if partitions not in (-1, count):
        message = f"A view has the {count} partition(s) of its source {source_name}; request -1 or {count}."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    factor = len(source.partitions[0].replicas)
    if replication_factor not in (-1, factor):
        message = f"A view has the {factor} replica(s) of its source {source_name}; request -1 or {factor}."
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def check_source(source_name: str, topics: Mapping[str, TopicImage]) -> TopicImage:
    """Return the source of a new view. Raises KafkaError (INVALID_CONFIG)."""
    source = topics.get(source_name)
    if source is None:
        reason = "does not exist; create it first, in a request of its own"
    elif not source.partitions:
        reason = "is a view, and a view of a view is not possible"
    elif source.internal:
        reason = "is an internal topic"
    else:
        return source
    raise KafkaError(ErrorCode.INVALID_CONFIG, f"{VIEW_OF}: the topic '{source_name}' {reason}.")


def check_views_deleted(name: str, views: Collection[str], deleted: Collection[str]) -> None:
    """Raise KafkaError if a topic has views that are not deleted by the same request."""
    remaining = sorted(view for view in views if view not in deleted)
    if remaining:
        message = f"Topic '{name}' has views, which must be deleted first: {', '.join(remaining[:10])}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_not_view(topic: TopicImage | None, operation: str) -> None:
    """Raise KafkaError if the topic is a view, for an operation on its partitions."""
    if topic is not None and topic.view_of:
        message = f"Topic '{topic.name}' is a view; {operation} its source '{topic.view_of}'."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
