"""Logs with segments and producers, which tests stop and open again."""

from kbroker.storage.log.log import Log
from tests.unit.support.log_lab import NOW, append, batch

SEGMENTS = {"segment_bytes": 3000, "index_interval_bytes": 256}


def produce(log: Log, count: int, producer_id: int = 7, start: int = 0) -> list[bytes]:
    """Append batches of an idempotent producer; returns them as they were sent."""
    sent = []
    for n in range(start, start + count):
        data = batch(1, 30, NOW + n, producer_id=producer_id, producer_epoch=0, base_sequence=n)
        sent.append(bytes(data))
        append(log, data)
    return sent


def producers(log: Log) -> list[object]:
    return sorted(log.producers.active())
