"""Java's String.hashCode, which determines the partition of an internal topic for a group or transactional id.

The hash is a polynomial: the sum of unit[i] * 31**(length - 1 - i) over the UTF-16 units of the string, modulo 2**32. A
loop over the units takes 60 ns each, so that an id of 32 KB would take 2 ms. Here a block of units is one large
integer, in which each unit has a lane of bits. One multiplication works on all lanes of a block, and each step adds one
half of the lanes to the other half. That takes 0.2 ms for 32 KB, and 2 us for an id of usual length. The hashes of such
ids are cached, because each request of a group needs one.
"""

from functools import lru_cache

BLOCK_UNITS = 1024
# Each of the two caches takes at most 2 MB. A topic uses one of them.
MAX_CACHED_LENGTH = 128
MAX_CACHED_TEXTS = 4096
_BLOCK_BYTES = 2 * BLOCK_UNITS
_BLOCK_POWER = pow(31, BLOCK_UNITS, 1 << 32)
_MAX_UINT32 = 0xFFFFFFFF
_MAX_INT32 = 0x7FFFFFFF
# The lower half of each lane of 32 bits, and of 64 bits.
_LOW_16 = int.from_bytes(b"\0\0\xff\xff" * (BLOCK_UNITS // 2), "big")
_LOW_32 = int.from_bytes(b"\0\0\0\0\xff\xff\xff\xff" * (BLOCK_UNITS // 4), "big")


def _halving(lanes: int) -> tuple[int, int, int, int]:
    """Return the constants with which the upper half of `lanes` lanes (64 bits with 4 units each) is added to the lower
    half: the bits and the mask of a half, its power of 31, and the mask of the lower 32 bits of its lanes."""
    bits = 32 * lanes
    half = (1 << bits) - 1
    return bits, half, pow(31, 2 * lanes, 1 << 32), _LOW_32 & half


# 256 lanes, 128, ... 2.
_HALVINGS = tuple(_halving(lanes) for lanes in (256, 128, 64, 32, 16, 8, 4, 2))


def key_hash(key: str) -> int:
    """Return the absolute value of String.hashCode, as Kafka does to find the partition of a key.

    The lowest value has no absolute value in Java's int; Kafka takes 0 (Utils.abs).
    """
    return _cached_key_hash(key) if len(key) <= MAX_CACHED_LENGTH else compute_key_hash(key)


def compute_key_hash(key: str) -> int:
    value = compute_hash(key)
    return min(value, -value & _MAX_UINT32) & _MAX_INT32


def former_key_hash(key: str) -> int:
    """Return the lower 31 bits of String.hashCode: the hash in internal topics that former versions have created.

    For a negative hashCode it differs from Kafka's. A topic keeps its hash, since all records of a key must be in one
    partition.
    """
    return java_hash(key) & _MAX_INT32


def java_hash(text: str) -> int:
    """Return Java's String.hashCode as an unsigned integer of 32 bits."""
    return _cached_hash(text) if len(text) <= MAX_CACHED_LENGTH else compute_hash(text)


def compute_hash(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    # The first block may be shorter: leading zeros do not change the sum.
    for end in range(len(units) % _BLOCK_BYTES or _BLOCK_BYTES, len(units) + 1, _BLOCK_BYTES):
        block = int.from_bytes(units[max(0, end - _BLOCK_BYTES) : end], "big")
        # Now lanes of 32 bits have two units each, then lanes of 64 bits have four, whose sum is below 2**32.
        block = (block >> 16 & _LOW_16) * 31 + (block & _LOW_16)
        block = (block >> 32 & _LOW_32) * 31**2 + (block & _LOW_32)
        for bits, half, power, low_32 in _HALVINGS:
            block = (block >> bits) * power + (block & half) & low_32
        value = (value * _BLOCK_POWER + block) & _MAX_UINT32
    return value


_cached_hash = lru_cache(MAX_CACHED_TEXTS)(compute_hash)
_cached_key_hash = lru_cache(MAX_CACHED_TEXTS)(compute_key_hash)
