"""Valid inputs of decoders, and random damage to them.

The damage is a list of steps. A step is four numbers: every generator can make it, and the list of a failure can be
shrunk to the steps that matter. The spots of a case are the positions of its lengths and counts.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

# The maximum size of a damaged input.
MAX_SIZE = 1 << 17


class Spot(NamedTuple):
    """A length, a count or another number in a valid input: position, size, encoding (a key of _ENCODERS)."""

    pos: int
    size: int
    kind: str


class Case(NamedTuple):
    """A valid input.

    run: decodes an input, damaged or not, and checks the result.
    seal: corrects the checksums of a damaged input, so that the damage gets past them.
    good: whether the decoder accepts the undamaged input.
    """

    data: bytes
    run: Callable[[bytes], object]
    spots: Sequence[Spot] = ()
    seal: Callable[[bytearray], None] | None = None
    good: bool = True


class Step(NamedTuple):
    """A kind of damage, and three 32-bit numbers as its parameters."""

    kind: int
    where: int
    how: int
    much: int


def random_steps(rng: Random) -> list[Step]:
    bits = rng.getrandbits
    return [Step(bits(32), bits(32), bits(32), bits(32)) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8)))]


def damaged(case: Case, steps: Sequence[Step]) -> bytes:
    """Return the input of the case after these steps."""
    data = bytearray(case.data)
    sealed = False
    for step in steps:
        # Spots are positions in the undamaged input. After a step that moves bytes they are arbitrary positions.
        if case.spots and step.kind & 1:
            _change_number(data, case.spots[step.where % len(case.spots)], step)
        else:
            _KINDS[(step.kind >> 1) % len(_KINDS)](data, step)
        sealed = sealed or bool(step.kind & 1 << 30)
    del data[MAX_SIZE:]
    if case.seal is not None and sealed:
        case.seal(data)
    return bytes(data)


def _range(data: bytearray, step: Step) -> tuple[int, int]:
    """Return (start, end) of some bytes of the input, mostly few."""
    start = step.where % (len(data) + 1)
    longest = (1, 4, 16, len(data))[step.much & 3]
    return start, min(len(data), start + 1 + (step.much >> 2) % max(longest, 1))


def _flip(data: bytearray, step: Step) -> None:
    if data:
        data[step.where % len(data)] ^= 1 << step.how % 8


def _replace(data: bytearray, step: Step) -> None:
    if data:
        data[step.where % len(data)] = (0, 1, 0x7F, 0x80, 0xFF, step.much & 0xFF)[step.how % 6]


def _cut_end(data: bytearray, step: Step) -> None:
    del data[step.where % (len(data) + 1) :]


def _cut_range(data: bytearray, step: Step) -> None:
    start, end = _range(data, step)
    del data[start:end]


def _insert(data: bytearray, step: Step) -> None:
    start = step.where % (len(data) + 1)
    count = (1, 2, 8, 100, 4000)[step.much % 5]
    fill = (b"\0", b"\xff", b"\1", bytes((step.how >> 8 & 0xFF,)), b"")[step.how % 5]
    data[start:start] = fill * count if fill else Random(step.how).randbytes(count)


def _repeat(data: bytearray, step: Step) -> None:
    """Repeat a part once, a few times, or up to the maximum size, which shows quadratic time."""
    start, end = _range(data, step)
    part = data[start:end]
    times = (1, 3, 100, MAX_SIZE // max(len(part), 1))[step.how & 3 if not step.how & 0x3C else step.how & 1]
    data[end:end] = part * times


def _swap(data: bytearray, step: Step) -> None:
    start, end = _range(data, step)
    part = data[start:end]
    del data[start:end]
    to = step.how % (len(data) + 1)
    data[to:to] = part


def _fill(data: bytearray, step: Step) -> None:
    start, end = _range(data, step)
    data[start:end] = (b"\0", b"\xff", b"\x80", b"[")[step.how & 3] * (end - start)


def _randomize(data: bytearray, step: Step) -> None:
    start, end = _range(data, step)
    data[start:end] = Random(step.how).randbytes(end - start)


def _number_anywhere(data: bytearray, step: Step) -> None:
    kinds = ("i16", "i32", "i64", "uvarint", "varint")
    size = (2, 4, 8, 1, 1)[step.much % 5]
    _change_number(data, Spot(step.where % (len(data) + 1), size, kinds[step.much % 5]), step)


_KINDS = (
    _flip, _replace, _cut_end, _cut_range, _insert, _repeat, _swap, _fill, _randomize, _number_anywhere,
)  # fmt: skip


# Numbers.

_EDGES = (
    0, 1, -1, -2, 2, 3, 7, 15, 16, 100, 101, 126, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 1 << 20,
    (1 << 24) - 1, (1 << 31) - 1, -(1 << 31), 1 << 31, (1 << 32) - 1, 1 << 35, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip


def _fixed(size: int) -> Callable[[int, int], bytes]:
    return lambda number, _: (number & (1 << 8 * size) - 1).to_bytes(size, "big")


def _uvarint(number: int, how: int) -> bytes:
    """Encode a varint; every eighth is longer than necessary, or never ends."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    if how & 7 == 0:
        out[-1] |= 0x80
        out += b"\x80" * (how >> 3 & 15) + b"\0"
    return bytes(out)


def _varint(number: int, how: int) -> bytes:
    return _uvarint(number << 1 if number >= 0 else ~number << 1 | 1, how)


def _text(number: int, how: int) -> bytes:
    return (str(number).encode(), b"1e999", b"-0", b"9" * 5000, b"NaN", b"\xff", b"0x10", b"true")[how >> 8 & 7]


_ENCODERS: dict[str, Callable[[int, int], bytes]] = {
    "i8": _fixed(1),
    "i16": _fixed(2),
    "i32": _fixed(4),
    "i64": _fixed(8),
    "uvarint": _uvarint,
    "varint": _varint,
    "text": _text,
}


def _change_number(data: bytearray, spot: Spot, step: Step) -> None:
    old = int.from_bytes(data[spot.pos : spot.pos + spot.size], "big")
    remaining = len(data) - spot.pos - spot.size
    near = (
        old + 1, old - 1, old * 2, remaining, remaining + 1, remaining - 1, remaining // 2, step.much, -old,
    )  # fmt: skip
    chosen = step.much >> 8
    number = near[chosen // 2 % len(near)] if chosen & 1 else _EDGES[chosen // 2 % len(_EDGES)]
    data[spot.pos : spot.pos + spot.size] = _ENCODERS[spot.kind](number, step.how)


def text_spots(data: bytes) -> list[Spot]:
    """Return the spots of the numbers in a text."""
    spots: list[Spot] = []
    start = None
    for pos, byte in enumerate(data + b" "):
        digit = 0x30 <= byte <= 0x39
        if digit and start is None:
            start = pos
        elif not digit and start is not None:
            spots.append(Spot(start, pos - start, "text"))
            start = None
    return spots
