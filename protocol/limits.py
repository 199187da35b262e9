"""Bounds on the number of elements and tagged fields of one message.

The size of a frame does not bound the cost of decoding it: an element can take one byte on the wire and a hundred bytes
in memory. So the arrays of one message share a maximum number of elements. It is lower for requests, because decoding
one delays all other clients, and lowest for requests whose elements are expensive to serve (the class keyword
`costly` of these messages). The elements of a costly response take more memory than others, up to 720 bytes.
"""

MAX_ELEMENTS = 250_000
MAX_REQUEST_ELEMENTS = 100_000
MAX_COSTLY_ELEMENTS = 10_000
MAX_COSTLY_RESPONSE_ELEMENTS = 80_000
# A request with more elements is handled in turns, whatever its size: 10,000 empty names are 10 KB. The codecs of
# Produce and Fetch pause after this number of topics and partitions.
MAX_ELEMENTS_AT_ONCE = 256
# No client of the project reads a larger response, nor does librdkafka by default.
MAX_RESPONSE_BYTES = 128 << 20
MAX_TAGGED_FIELDS = 100  # per struct


def too_many_elements(bound: int) -> str:
    """Return the error text for a message with more than `bound` elements."""
    return f"more than {bound} elements"
