"""What a compacted log must hold, said of the records that were in it before."""

from collections.abc import Iterable, Mapping, Sequence

from tests.compat.compaction.bulk import Record

Place = tuple[int, int]  # partition, offset

_SHOWN = 5


def by_place(records: Iterable[Record]) -> dict[Place, Record]:
    return {(record.partition, record.offset): record for record in records}


def latest(records: Iterable[Record]) -> list[Record]:
    """The last record of each key in each partition, in the order of their offsets."""
    found: dict[tuple[int, bytes | None], Record] = {}
    for record in sorted(records, key=lambda record: record.offset):
        found[record.partition, record.key] = record
    return sorted(found.values())


def check_sound(before: Sequence[Record], now: Sequence[Record], *, tombstones: bool = True) -> None:
    """True at any time, whatever has been compacted so far: nothing moved or changed, offsets ascend, and the last
    record of each key is there. `tombstones`: also where it is a tombstone, none of which may go yet."""
    check_in_place(by_place(before), now)
    there = by_place(now)
    lost = [
        record
        for record in latest(before)
        if (record.partition, record.offset) not in there and (tombstones or record.value is not None)
    ]
    assert lost == [], f"the last record of {len(lost)} keys is lost, such as {shown(lost)}"


def check_in_place(before: Mapping[Place, Record], now: Sequence[Record]) -> None:
    """What is at an offset is what was there before."""
    reached: dict[int, int] = {}
    for record in now:
        place = record.partition, record.offset
        assert record.offset > reached.get(record.partition, -1), f"offsets ascend up to {place}"
        reached[record.partition] = record.offset
        assert record == before.get(place, record), f"not what was written at {place}"


def superseded(before: Sequence[Record], now: Sequence[Record]) -> list[Record]:
    """What is there still of `before` and would not be, were all of it compacted."""
    last = by_place(latest(before))
    mine = by_place(before)
    return [r for r in now if (r.partition, r.offset) in mine and (r.partition, r.offset) not in last]


def shown(records: Sequence[Record]) -> str:
    """The first few, with long keys and values cut."""
    return ", ".join(
        f"{r.partition}:{r.offset} {(r.key or b'')[:40]!r}={r.value if r.value is None else r.value[:40]!r}"
        for r in records[:_SHOWN]
    )
