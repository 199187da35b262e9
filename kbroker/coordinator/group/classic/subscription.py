"""Which topics a consumer subscribed to, read from its join metadata.

The metadata is the clients' own business; brokers look at its beginning only, which all versions share.
"""

from protocol.errors import MalformedError
from protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from protocol.schema.codec import decoder

CONSUMER_PROTOCOL = "consumer"

# An int16 version stands before the message.
_START = 2


def topics_of(metadata: bytes) -> list[str] | None:
    """The subscribed topics; None when the bytes are not a subscription."""
    if len(metadata) < _START:
        return None
    try:
        subscription, _ = decoder(ConsumerProtocolSubscription, 0)(metadata, _START)
    except MalformedError:
        return None
    return subscription.topics
