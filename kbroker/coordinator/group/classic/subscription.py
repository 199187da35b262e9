"""The topics of a consumer's subscription, which is part of its JoinGroup metadata.

The metadata belongs to the clients; the coordinator only reads its beginning, which all versions share.
"""

from protocol.errors import MalformedError
from protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from protocol.schema.codec import decoder

CONSUMER_PROTOCOL_TYPE = "consumer"

# The message follows an int16 version.
_VERSION_BYTES = 2


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """Return the subscribed topics; None if the bytes are not a subscription."""
    if len(metadata) < _VERSION_BYTES:
        return None
    try:
        subscription, _ = decoder(ConsumerProtocolSubscription, 0)(metadata, _VERSION_BYTES)
    except MalformedError:
        return None
    return subscription.topics
