"""The node of a topic: its fields, and those of former versions."""

import pytest

from kbroker.coordination.interface import CoordinationError
from kbroker.metadata.store import znodes
from kbroker.metadata.store.znodes import TopicNode, decode_topic, encode_topic


@pytest.mark.parametrize(
    "node", [TopicNode(b"1" * 16, False), TopicNode(b"2" * 16, True), TopicNode(b"3" * 16, True, True)]
)
def test_a_topic_is_decoded_as_it_was_encoded(node: TopicNode) -> None:
    assert decode_topic("t", encode_topic(node)) == node


def test_internal_topics_of_former_versions_keep_their_hash() -> None:
    former = znodes.encode({"id": "31" * 16, "internal": True})
    assert decode_topic("__consumer_offsets", former) == TopicNode(b"1" * 16, True, has_kafka_key_hash=False)


def test_an_unknown_hash_is_refused() -> None:
    """A later version may have another one; with the wrong one groups would lose their offsets."""
    later = znodes.encode({"id": "31" * 16, "internal": True, "hash": "murmur"})
    with pytest.raises(CoordinationError, match="unknown hash murmur"):
        decode_topic("__consumer_offsets", later)
