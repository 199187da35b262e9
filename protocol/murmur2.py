"""The hash of Kafka's default partitioner: a key belongs to its positive remainder by the number of partitions."""

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_UINT32 = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 hash as an unsigned number."""
    size = len(data)
    words_end = size & ~3
    view = memoryview(data)
    result = _SEED ^ size
    for pos in range(0, words_end, 4):
        word = int.from_bytes(view[pos : pos + 4], "little") * _MULTIPLIER & _UINT32
        word = (word ^ word >> 24) * _MULTIPLIER & _UINT32
        result = result * _MULTIPLIER & _UINT32 ^ word
    if size > words_end:
        result = (result ^ int.from_bytes(view[words_end:], "little")) * _MULTIPLIER & _UINT32
    result = (result ^ result >> 13) * _MULTIPLIER & _UINT32
    return result ^ result >> 15
