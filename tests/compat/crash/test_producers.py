"""Producers that write at speed while the broker is killed by kill -9 and restarted again and again.

Most kills come after the broker has appended batches and before anybody has heard of it: these are repeated to a
broker that must remember them from its files.
"""

import os
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import pytest

from tests.compat.crash.conftest import create_topic
from tests.compat.crash.kills import (
    CHECKPOINTED,
    FROZEN,
    HELD,
    Check,
    Killer,
    check_exactly_once,
    check_nothing_lost,
    offsets_of,
    progress,
    read_all,
    repaired,
)
from tests.compat.crash.writers import ConfluentWriter, PythonWriter, UnbatchedWriter, Writer

PARTITIONS = 3
# Small segments, so that they roll between kills.
SEGMENTS = {"segment.bytes": str(1 << 20)}
# How often the broker is killed under two clients at once.
KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "2"))
WAYS = (HELD, CHECKPOINTED, FROZEN, CHECKPOINTED)


@pytest.fixture
def settings() -> dict[str, str]:
    """Recovery begins in the middle of segments, and producers' states come from snapshots."""
    return {"log.flush.offset.checkpoint.interval.ms": "100"}


def run(killer: Killer, writers: Sequence[Writer], topic: str, kills: int, check: Check) -> None:
    """Kills the broker again and again under writers, each time with unanswered requests of the next one of them, stops
    all cleanly, and checks what is there."""
    for writer in writers:
        writer.start()
    for number, how in enumerate(islice(cycle(WAYS), kills)):
        writer = writers[number % len(writers)]
        progress(writer, 100 + 100 * (number % 3))
        killer.kill(writer, topic, how)
        killer.start()
    for writer in writers:
        progress(writer, 100)
    for writer in writers:
        writer.stop()
        assert writer.ledger.outstanding == 0
    for kill in killer.kills:
        assert kill.unanswered.requests > 0, kill
        assert kill.outstanding >= kill.records > 0, kill
        assert kill.how == FROZEN or kill.in_log > 0, kill
    killer.broker.stop()
    killer.broker.start()
    assert repaired(killer.broker) == [], "a clean stop leaves nothing to be repaired"
    read = read_all(killer.line.address, topic, writers[0].ledger.partitions)
    for writer in writers:
        check(writer.ledger, offsets_of(writer.ledger, read))


def refused(writer: Writer) -> dict[Any, str]:
    return writer.ledger.refused


def by(make: type[Writer], client: str, partitions: int = PARTITIONS, **config: Any) -> Any:
    return pytest.param(make, partitions, config, marks=pytest.mark.client(client), id=make.__name__)


IDEMPOTENT = [
    by(ConfluentWriter, "confluent_kafka", **{"enable.idempotence": True}),
    # All that it sends ahead is for one partition: as many batches as a broker remembers of a producer.
    by(UnbatchedWriter, "confluent_kafka", partitions=1, **{"enable.idempotence": True}),
    by(PythonWriter, "kafka_python", enable_idempotence=True),
]
ACKS_ALL = [
    by(ConfluentWriter, "confluent_kafka", acks="all"),
    by(PythonWriter, "kafka_python", acks="all", enable_idempotence=False),
]


@pytest.mark.feature("kill -9")
@pytest.mark.parametrize(("make", "partitions", "config"), IDEMPOTENT)
def test_idempotent_producers_leave_no_duplicate(killer, admin, writing, name, make, partitions, config):
    topic = create_topic(admin, name, partitions, SEGMENTS)
    writer = writing(make, topic, partitions, **config)
    run(killer, [writer], topic, 4, check_exactly_once)
    assert refused(writer) == {}, "an idempotent producer goes on until everything is acknowledged"


@pytest.mark.feature("kill -9")
@pytest.mark.parametrize(("make", "partitions", "config"), ACKS_ALL)
def test_nothing_that_was_acknowledged_is_lost(killer, admin, writing, name, make, partitions, config):
    topic = create_topic(admin, name, partitions, SEGMENTS)
    writer = writing(make, topic, partitions, **config)
    run(killer, [writer], topic, 2, check_nothing_lost)


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_two_clients_write_compressed_batches(killer, admin, writing, name):
    """For longer: KBROKER_COMPAT_KILLS=200."""
    topic = create_topic(admin, name, 2 * PARTITIONS, SEGMENTS)
    confluent = {"enable.idempotence": True, "compression.type": "zstd"}
    python = {"enable_idempotence": True, "compression_type": "gzip"}
    writers = [
        writing(ConfluentWriter, topic, 2 * PARTITIONS, **confluent),
        writing(PythonWriter, topic, 2 * PARTITIONS, **python),
    ]
    run(killer, writers, topic, KILLS, check_exactly_once)
    assert [refused(writer) for writer in writers] == [{}, {}]


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_acknowledged_after_a_sync(killer, admin, writing, name):
    """flush.before.ack: many batches wait for one sync, so a kill finds many in the log and unanswered."""
    topic = create_topic(admin, name, PARTITIONS, {**SEGMENTS, "flush.before.ack": "true"})
    writer = writing(ConfluentWriter, topic, PARTITIONS, **{"enable.idempotence": True})
    run(killer, [writer], topic, 3, check_exactly_once)
    assert refused(writer) == {}
