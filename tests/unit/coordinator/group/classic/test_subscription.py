"""The topics in a member's subscription."""

import struct

import pytest

from kbroker.coordinator.group.classic.classic_group_member import subscribed_topics
from protocol.messages.consumer_protocol import ConsumerProtocolSubscription, OwnedTopic
from protocol.schema.codec import encode


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_the_topics_of_every_version_are_read(version: int) -> None:
    subscription = ConsumerProtocolSubscription(
        topics=["a", "bä"],
        user_data=b"u",
        owned_partitions=[OwnedTopic(topic="a", partitions=[1])],
        generation_id=7,
        rack_id="r",
    )
    assert subscribed_topics(struct.pack(">h", version) + encode(subscription, version)) == ["a", "bä"]


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"bad",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\0\1",
        b"\0\0\0\0\0\1\0\1t\0\0\xff\xff",
        b"\0\0\0\0\0\1\0\1t",
    ],
)
def test_bytes_that_are_not_a_subscription_have_no_topics(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None
