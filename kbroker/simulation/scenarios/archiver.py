"""Archives the committed records of topics from outside, and disturbs the processes that read the archives."""

import asyncio
from random import Random

from kbroker.common import uuid_text
from kbroker.replica.partition import Partition
from kbroker.simulation.clients.workloads.context import StopSignal
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.log_files import read_batches, segment_files
from kbroker.simulation.runtime.history_service import SimArchivedTopic, SimArchives
from kbroker.simulation.runtime.machine import Machine

# The location of all archives.
ARCHIVE = "/archive"
# The pause between two commits, in seconds.
PAUSE_S = (0.05, 1.0)
DISTURBANCES = 0.2


def draw_archive_configs(random: Random) -> dict[str, str]:
    """Draw configs of a topic whose log is short, and whose archive has everything."""
    return {
        "kbroker.archive.table": ARCHIVE,
        "kbroker.archive.earliest": "true",
        "kbroker.archive.before.delete": "true",
        "internal.segment.bytes": str(random.choice((1, 2, 16)) << 10),
        "segment.ms": str(random.choice((200, 604_800_000))),
        "retention.bytes": str(random.choice((0, 4, 64)) << 10),
        "file.delete.delay.ms": str(random.choice((0, 1_000))),
    }


async def archive(machines: list[Machine], topics: list[str], random: Random, stop: StopSignal) -> None:
    """Archive what the leaders have committed, again and again. Each machine reads the archives by itself."""
    archived: dict[tuple[str, str], SimArchivedTopic] = {}
    for machine in machines:
        machine.archives.topics = archived
    while not stop.requested:
        for machine in machines:
            services = machine.services
            for partition in [] if services is None else list(services.replicas.partitions.values()):
                if partition.is_leader and partition.tp.topic in topics:
                    topic = archived.setdefault(
                        (ARCHIVE, partition.tp.topic), SimArchivedTopic(uuid_text(partition.topic_id))
                    )
                    _append(topic, partition, machine.disk)
            _disturb(machine.archives, random)
        await asyncio.sleep(random.uniform(*PAUSE_S))
    for machine in machines:
        machine.archives.failure, machine.archives.is_slow = None, False


def _append(topic: SimArchivedTopic, partition: Partition, disk: SimDisk) -> None:
    index, limit = partition.tp.partition, partition.last_stable_offset
    for _, path in segment_files(disk, partition.log.directory):
        data = disk.data(path)
        for batch in read_batches(data):
            if batch.header.next_offset <= limit:
                topic.append(index, bytes(data[batch.start : batch.end]), batch.header.next_offset)


def _disturb(archives: SimArchives, random: Random) -> None:
    if random.random() < DISTURBANCES:
        archives.failure = random.choice((None, None, "damaged", "unavailable"))
        archives.is_slow = random.random() < DISTURBANCES
        if archives.services and random.random() < DISTURBANCES:
            archives.services[-1].kill()
