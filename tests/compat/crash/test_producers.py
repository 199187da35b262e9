"""Producers that write at speed while the broker is killed by kill -9 and restarted again and again.

Every second kill comes after the broker has appended batches and before anybody has heard of it: these are repeated
to a broker that must remember them from its files.
"""

from itertools import cycle, islice
from typing import Any

import pytest

from tests.compat.crash.conftest import create_topic
from tests.compat.crash.kills import (
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


def run(killer: Killer, writer: Writer, topic: str, kills: int, check: Check) -> None:
    """Kills the broker again and again under a writer, stops both cleanly, and checks what is there."""
    writer.start()
    for number, how in enumerate(islice(cycle((FROZEN, HELD)), kills)):
        progress(writer, 100 + 200 * (number % 3))
        killer.kill(writer, topic, how)
        killer.start()
    progress(writer, 100)
    writer.stop()
    assert writer.ledger.outstanding == 0
    for kill in killer.kills:
        assert kill.unanswered.requests > 0, kill
        assert kill.outstanding > 0, kill
        assert kill.how != HELD or kill.in_log > 0, kill
    check(writer.ledger, offsets_of(writer.ledger, read_all(killer.line.address, topic, PARTITIONS)))
    killer.broker.stop()
    killer.broker.start()
    assert repaired(killer.broker) == [], "a clean stop leaves nothing to be repaired"
    check(writer.ledger, offsets_of(writer.ledger, read_all(killer.line.address, topic, PARTITIONS)))


def refused(writer: Writer) -> dict[Any, str]:
    return writer.ledger.refused


def by(make: type[Writer], client: str, **settings: Any) -> Any:
    return pytest.param(make, settings, marks=pytest.mark.client(client), id=make.__name__)


IDEMPOTENT = [
    by(ConfluentWriter, "confluent_kafka", **{"enable.idempotence": True}),
    by(UnbatchedWriter, "confluent_kafka", **{"enable.idempotence": True}),
    by(PythonWriter, "kafka_python", enable_idempotence=True),
]
ACKS_ALL = [
    by(ConfluentWriter, "confluent_kafka", acks="all"),
    by(PythonWriter, "kafka_python", acks="all", enable_idempotence=False),
]


@pytest.mark.feature("kill -9")
@pytest.mark.parametrize(("make", "settings"), IDEMPOTENT)
def test_idempotent_producers_leave_no_duplicate(killer, admin, writing, name, make, settings):
    topic = create_topic(admin, name, PARTITIONS, SEGMENTS)
    writer = writing(make, topic, PARTITIONS, **settings)
    run(killer, writer, topic, 4, check_exactly_once)
    assert refused(writer) == {}, "an idempotent producer goes on until everything is acknowledged"


@pytest.mark.feature("kill -9")
@pytest.mark.parametrize(("make", "settings"), ACKS_ALL)
def test_nothing_that_was_acknowledged_is_lost(killer, admin, writing, name, make, settings):
    topic = create_topic(admin, name, PARTITIONS, SEGMENTS)
    writer = writing(make, topic, PARTITIONS, **settings)
    run(killer, writer, topic, 2, check_nothing_lost)


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_acknowledged_after_a_sync(killer, admin, writing, name):
    """flush.before.ack: many batches wait for one sync, so a kill finds many in the log and unanswered."""
    topic = create_topic(admin, name, PARTITIONS, {**SEGMENTS, "flush.before.ack": "true"})
    writer = writing(ConfluentWriter, topic, PARTITIONS, **{"enable.idempotence": True})
    run(killer, writer, topic, 3, check_exactly_once)
    assert refused(writer) == {}
