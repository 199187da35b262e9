"""A model of a compacted log, and random appends to both."""

from dataclasses import dataclass, field
from random import Random

from kbroker.storage.log.log import Log
from protocol.records.batch import build_batch, iter_headers
from tests.unit.support.compaction import Records, records
from tests.unit.support.log_lab import append, content

HOUR = 3600 * 1000


@dataclass
class Model:
    """The appended records, and those of them that may be missing."""

    written: Records = field(default_factory=dict)
    # (base, last) offset of each batch.
    batches: set[tuple[int, int]] = field(default_factory=set)
    # Epoch and last sequence by producer id.
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    # The delete horizon of each tombstone, set by the first compaction that keeps it.
    horizons: dict[int, int] = field(default_factory=dict)

    def check(self, log: Log) -> None:
        actual = records(log)
        assert actual.items() <= self.written.items(), "a record has changed or moved"
        for offset in self.latest(log.log_end_offset).values():
            if offset not in actual:
                _, _, value = self.written[offset]
                assert value is None, f"the last value at {offset} is lost"
                assert offset in self.horizons, f"the tombstone at {offset} was removed by the first compaction"
        headers = [header for _, header in iter_headers(content(log))]
        assert {(header.base_offset, header.last_offset) for header in headers} <= self.batches
        assert log.log_end_offset == max(last for _, last in self.batches) + 1

    def latest(self, end: int) -> dict[bytes | None, int]:
        return {key: offset for offset, (_, key, _) in self.written.items() if offset < end}

    def check_compacted(self, log: Log, now_ms: int) -> None:
        """Check after a compaction that each key is there once, and no tombstone was removed before its horizon."""
        actual = records(log)
        below = {offset: record for offset, record in actual.items() if offset < log.cleaned_to}
        keys = [key for _, key, _ in below.values()]
        assert len(set(keys)) == len(keys), "a key is there twice"
        for offset in self.latest(log.log_end_offset).values():
            if self.written[offset][2] is not None or offset >= log.cleaned_to:
                continue
            horizon_ms = self.horizons.get(offset)
            if horizon_ms is None:
                self.horizons[offset] = now_ms + log.config.delete_retention_ms
                assert offset in actual
            else:
                assert (offset in actual) == (now_ms < horizon_ms), (offset, now_ms - horizon_ms)


def write_some(log: Log, model: Model, random: Random, now_ms: int, batches: int = 40) -> None:
    for _ in range(batches):
        new = [
            (
                now_ms + random.randrange(-1000, 1000),
                b"key-%d" % random.randrange(25) + bytes(random.choice((0, 0, 40))),
                None if random.random() < 0.25 else random.randbytes(random.randrange(60)),
                ((b"h", b"v"),) if random.random() < 0.2 else (),
            )
            for _ in range(random.choice((1, 1, 2, 5)))
        ]
        producer = random.choice((-1, -1, 7, 8))
        epoch, sequence = model.producers.get(producer, (0, -1))
        if random.random() < 0.02:
            epoch, sequence = epoch + 1, -1
        identity = (producer, epoch, sequence + 1) if producer >= 0 else (-1, -1, -1)
        batch = build_batch(
            new,
            codec=random.choice((0, 0, 1, 2, 3, 4)),
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=identity[2],
        )
        base = append(log, batch)
        model.written.update({base + n: record[:3] for n, record in enumerate(new)})
        model.batches.add((base, base + len(new) - 1))
        if producer >= 0:
            model.producers[producer] = (epoch, sequence + len(new))
        if random.random() < 0.01:
            log.roll(now_ms)
