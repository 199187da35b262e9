"""Topics with an archive, on a simulated broker."""

from typing import Any

from kbroker.common import uuid_text
from kbroker.simulation.runtime.history_service import SimArchivedTopic
from kbroker.storage.log.log_reads import read_blocking
from protocol.records.batch import iter_headers
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import Machine

ARCHIVE = "/archive"


async def archived_topic(
    m: Machine, records: int = 20, *, kept: int = 5, name: str = "t", at_ms: int = 0, **configs: Any
) -> Client:
    """Create a topic with a record a segment, all archived, the last `kept` also in the log, and return a client.

    Each record is a second later than the one before.
    """
    client = await m.client()
    topic_id = await client.create_topic(
        name, internal_segment_bytes=130, kbroker_archive_table=ARCHIVE, retention_ms=-1, **configs
    )
    for number in range(records):
        at = (at_ms or m.now_ms) + 1000 * number
        await client.produce(name, batch(b"%d" % number, size=50, at_ms=at))
    archive_log(m, name, SimArchivedTopic(uuid_text(topic_id)))
    partition = m.partition(name)
    partition.log.delete_records(records - kept)
    partition.notify_all()
    await m.broker.services.replicas.store_log_starts()
    return client


def archive_log(m: Machine, name: str, topic: SimArchivedTopic) -> None:
    """Archive what the log has."""
    log = m.partition(name).log
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        records = bytes(read_blocking(log, offset, 1 << 20, log.log_end_offset))
        offset = list(iter_headers(records))[-1][1].next_offset
        topic.append(0, records, offset)
    m.archives.topics[ARCHIVE, name] = topic
