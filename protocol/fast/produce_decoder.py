"""Decodes Produce requests faster where they repeat earlier ones.

A producer sends the same bytes before each batch for a partition: acks, timeout, topic and partition. They are
remembered with what they say, so that of an equal request only the records remain to be found. Any other request is
decoded by `decode_produce_request`; property tests require equal results.
"""

from struct import Struct
from struct import error as StructError

from protocol.fast.produce import (
    FIRST_FLEXIBLE_VERSION,
    FIRST_TOPIC_ID_VERSION,
    ProduceRequest,
    decode_produce_request,
    make_request,
)
from protocol.varints import decode_uvarint

# When there are more, all are forgotten. A head has at most 277 bytes.
MAX_HEADS = 4096

_SIZE = Struct(">i")


class ProduceDecoder:
    """The decoder of one version.

    A head is what precedes the size of the records, in a request with one batch and without a transactional id:

        versions 3 to 8    id length 2 = -1 | acks 2 | timeout 4 | topics 4 = 1 | name length 2 | name |
                           partitions 4 = 1 | index 4
        versions 9 to 12   id 1 = 0 | acks 2 | timeout 4 | topics 1 = 2 | name length + 1 | name | partitions 1 = 2 |
                           index 4
        version 13         the same, but with a topic id of 16 bytes in place of the name and its length
    """

    __slots__ = ("_fixed_size", "_heads", "_is_flexible", "_length_pos")

    def __init__(self, version: int) -> None:
        self._is_flexible = version >= FIRST_FLEXIBLE_VERSION
        # A head has `_fixed_size` bytes and as many as the byte at `_length_pos` says: the lower byte of the name's
        # length, or the 0 of version 13 for no transactional id.
        if not self._is_flexible:
            self._fixed_size, self._length_pos = 22, 13
        elif version < FIRST_TOPIC_ID_VERSION:
            self._fixed_size, self._length_pos = 13, 8
        else:
            self._fixed_size, self._length_pos = 29, 0
        # (acks, timeout, topic, partition index)
        self._heads: dict[bytes, tuple[int, int, str | bytes, int]] = {}

    def decode(self, buf: memoryview, pos: int, version: int) -> ProduceRequest:
        """Decode a request that starts at `pos`. Raises MalformedError. `version` is the decoder's."""
        try:
            head_end = pos + self._fixed_size + buf[pos + self._length_pos]
            head = buf[pos:head_end].tobytes()
            known = self._heads.get(head)
            if known is not None:
                records = self._find_records(buf, head_end)
                if records is not None:
                    acks, timeout_ms, key, index = known
                    return make_request((None, acks, timeout_ms, [(key, [(index, records)])]))
        except (IndexError, StructError):
            # The general decoder raises the error.
            return decode_produce_request(buf, pos, version)
        request = decode_produce_request(buf, pos, version)
        if known is None and self._is_head(head, request):
            self._remember(head, request)
        return request

    def _find_records(self, buf: memoryview, pos: int) -> memoryview | None:
        """Return the records whose size is at `pos`. None if they are null, exceed the frame or have tagged fields."""
        if not self._is_flexible:
            size: int = _SIZE.unpack_from(buf, pos)[0]
            end = pos + 4 + size
            return buf[pos + 4 : end] if size >= 0 and end <= len(buf) else None
        size, pos = decode_uvarint(buf, pos)
        end = pos + size - 1
        # The tagged fields of the partition, the topic and the request.
        if not size or buf[end] or buf[end + 1] or buf[end + 2]:
            return None
        return buf[pos:end]

    def _is_head(self, head: bytes, request: ProduceRequest) -> bool:
        """Return whether `head`, whose size is a guess, is the head of this request."""
        transactional_id, _, _, topics = request
        if transactional_id is not None or len(topics) != 1 or len(topics[0][1]) != 1:
            return False
        if not self._is_flexible:
            return head[12] == 0
        # These varints have one byte.
        return head[7] == 2 and head[-5] == 2 and (self._length_pos == 0 or head[8] < 0x80)

    def _remember(self, head: bytes, request: ProduceRequest) -> None:
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        _, acks, timeout_ms, [(key, [(index, _)])] = request
        self._heads[head] = acks, timeout_ms, key, index
