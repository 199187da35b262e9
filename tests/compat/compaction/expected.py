"""What a compacted log must contain, given the records that were in it before."""

from collections.abc import Iterable, Mapping, Sequence

from tests.compat.compaction.bulk_clients import Record

PartitionOffset = tuple[int, int]  # partition, offset

_SHOWN = 5


def by_partition_offset(records: Iterable[Record]) -> dict[PartitionOffset, Record]:
    return {(record.partition, record.offset): record for record in records}


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each key in each partition, in offset order."""
    newest: dict[tuple[int, bytes | None], Record] = {}
    for record in sorted(records, key=lambda record: record.offset):
        newest[record.partition, record.key] = record
    return sorted(newest.values())


def check_sound(before: Sequence[Record], now: Sequence[Record], *, tombstones: bool = True) -> None:
    """Check what holds at any stage of compaction: no record has moved or changed, offsets ascend, and the last record
    of each key is there; with `tombstones` also if it is a tombstone."""
    check_in_place(by_partition_offset(before), now)
    remaining = by_partition_offset(now)
    lost = [
        record
        for record in latest(before)
        if (record.partition, record.offset) not in remaining and (tombstones or record.value is not None)
    ]
    assert lost == [], f"the last record of {len(lost)} keys is lost, such as {shown(lost)}"


def check_in_place(before: Mapping[PartitionOffset, Record], now: Sequence[Record]) -> None:
    """Check that each offset has the record that was there before."""
    reached: dict[int, int] = {}
    for record in now:
        position = record.partition, record.offset
        assert record.offset > reached.get(record.partition, -1), f"offsets ascend up to {position}"
        reached[record.partition] = record.offset
        assert record == before.get(position, record), f"not what was written at {position}"


def superseded(before: Sequence[Record], now: Sequence[Record]) -> list[Record]:
    """Return the records of `before` in `now` that a complete compaction removes."""
    last = by_partition_offset(latest(before))
    written = by_partition_offset(before)
    return [r for r in now if (r.partition, r.offset) in written and (r.partition, r.offset) not in last]


def shown(records: Sequence[Record]) -> str:
    """Return the first few as text, with long keys and values truncated."""
    return ", ".join(
        f"{r.partition}:{r.offset} {(r.key or b'')[:40]!r}={r.value if r.value is None else r.value[:40]!r}"
        for r in records[:_SHOWN]
    )
