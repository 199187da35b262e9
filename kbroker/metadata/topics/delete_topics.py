"""DeleteTopics: which topics to delete, and the errors of the others.

Error codes and messages are those of Apache Kafka 4.3.1.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from kbroker.common import KafkaError
from kbroker.metadata.image import TopicImage
from kbroker.metadata.topics.topic_names import ZERO_UUID
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

_UNKNOWN_NAME = "This server does not host this topic-partition."
_UNKNOWN_ID = "This server does not host this topic ID."
_ID_ALREADY_SUPPLIED = "The provided topic name maps to an ID that was already supplied."


@dataclass(slots=True)
class TopicNameOrId:
    """A topic in a request: by name, or by id (version 6)."""

    name: str | None
    topic_id: bytes = ZERO_UUID


@dataclass(slots=True)
class TopicDeletion:
    """One topic in the response. The topic is to be deleted if `error` is None."""

    name: str | None
    topic_id: bytes
    error: KafkaError | None = None


def plan_deletions(
    requested: Sequence[TopicNameOrId],
    topics: Mapping[str, TopicImage],
    topics_by_id: Mapping[bytes, TopicImage],
) -> list[TopicDeletion]:
    """Resolve the topics of a request. A topic that is named more than once, in any way, is not deleted."""
    deletions: list[TopicDeletion] = []
    # How often each is in the request, in order.
    names: Counter[str] = Counter()
    ids: Counter[bytes] = Counter()
    for ref in paced(requested):
        if (ref.name is None) == (ref.topic_id == ZERO_UUID):
            deletions.append(_malformed(ref))
        elif ref.name is not None:
            names[ref.name] += 1
        else:
            ids[ref.topic_id] += 1
    for name, times_named in paced(names.items()):
        deletions.append(_deletion_by_name(name, times_named, ids, topics))
    for topic_id, times_named in paced(ids.items()):
        if times_named > 1:
            deletions.append(TopicDeletion(None, topic_id, _invalid_request("Duplicate topic id.")))
        elif topic_id not in topics_by_id:
            deletions.append(TopicDeletion(None, topic_id, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, _UNKNOWN_ID)))
        else:
            _add_deletion_by_id(topics_by_id[topic_id], names, deletions)
    return deletions


def _malformed(ref: TopicNameOrId) -> TopicDeletion:
    if ref.name is None:
        return TopicDeletion(None, ref.topic_id, _invalid_request("Neither topic name nor id were specified."))
    return TopicDeletion(ref.name, ref.topic_id, _invalid_request("You may not specify both topic name and topic id."))


def _deletion_by_name(
    name: str, times_named: int, ids: Container[bytes], topics: Mapping[str, TopicImage]
) -> TopicDeletion:
    if times_named > 1:
        return TopicDeletion(name, ZERO_UUID, _invalid_request("Duplicate topic name."))
    topic = topics.get(name)
    if topic is None:
        return TopicDeletion(name, ZERO_UUID, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_NAME))
    if topic.topic_id in ids:
        return TopicDeletion(name, topic.topic_id, _invalid_request(_ID_ALREADY_SUPPLIED))
    return TopicDeletion(name, topic.topic_id)


def _add_deletion_by_id(topic: TopicImage, names: Mapping[str, int], deletions: list[TopicDeletion]) -> None:
    times_named = names.get(topic.name, 0)
    if times_named == 0:
        deletions.append(TopicDeletion(topic.name, topic.topic_id))
    elif times_named > 1:
        # If the name is in the request once, its own deletion already has the error for both.
        deletions.append(TopicDeletion(None, topic.topic_id, _invalid_request(_ID_ALREADY_SUPPLIED)))


def _invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
