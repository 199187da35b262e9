"""Producers that send at full speed while the broker is repeatedly killed (kill -9) and restarted.

Most kills come when the broker has appended batches and before the producers receive the responses. The producers retry
these batches, and the broker has to recognise them from its files.
"""

import os
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import pytest

from tests.compat.crash.background_producers import (
    BackgroundProducer,
    ConfluentProducer,
    KafkaPythonProducer,
    UnbatchedConfluentProducer,
)
from tests.compat.crash.checks import (
    Check,
    check_exactly_once,
    check_nothing_lost,
    offsets_of,
    read_topic,
    wait_for_acknowledgements,
)
from tests.compat.crash.conftest import create_topic
from tests.compat.crash.killer import FROZEN, HELD_AFTER_CHECKPOINTS, RESPONSES_HELD, Killer, repaired_logs

PARTITIONS = 3
# Small segments, so that they roll between kills.
SEGMENTS = {"segment.bytes": str(1 << 20)}
# How often the broker is killed while two clients produce.
KILLS = int(os.environ.get("KBROKER_COMPAT_KILLS", "2"))
WAYS = (RESPONSES_HELD, HELD_AFTER_CHECKPOINTS, FROZEN)


@pytest.fixture
def settings() -> dict[str, str]:
    """Frequent checkpoints: recovery begins in the middle of segments, and producer state comes from snapshots."""
    return {"log.flush.offset.checkpoint.interval.ms": "100"}


def run(killer: Killer, producers: Sequence[BackgroundProducer], topic: str, kills: int, check: Check) -> None:
    """Kill the broker `kills` times, each time with outstanding requests of the next producer. Then stop everything
    cleanly, and check what is stored."""
    for producer in producers:
        producer.start()
    for number, moment in enumerate(islice(cycle(WAYS), kills)):
        producer = producers[number % len(producers)]
        wait_for_acknowledgements(producer, 100 + 100 * (number % 3))
        killer.kill(producer, topic, moment)
        killer.start()
    for producer in producers:
        wait_for_acknowledgements(producer, 100)
    for producer in producers:
        producer.stop()
        assert producer.ledger.outstanding == 0
    for kill in killer.kills:
        assert kill.lost.requests > 0, kill
        assert kill.outstanding >= kill.records > 0, kill
        assert kill.moment == FROZEN or kill.in_log > 0, kill
    killer.broker.stop()
    killer.broker.start()
    assert repaired_logs(killer.broker) == [], "no repairs after a clean stop"
    read = read_topic(killer.proxy.address, topic, producers[0].ledger.partitions)
    for producer in producers:
        check(producer.ledger, offsets_of(producer.ledger, read))


def client_param(make: type[BackgroundProducer], client: str, partitions: int = PARTITIONS, **config: Any) -> Any:
    return pytest.param(make, partitions, config, marks=pytest.mark.client(client), id=make.__name__)


IDEMPOTENT = [
    client_param(ConfluentProducer, "confluent_kafka", **{"enable.idempotence": True}),
    # All pipelined batches are for one partition: as many as a broker remembers of a producer.
    client_param(UnbatchedConfluentProducer, "confluent_kafka", partitions=1, **{"enable.idempotence": True}),
    client_param(KafkaPythonProducer, "kafka_python", enable_idempotence=True),
]
ACKS_ALL = [
    client_param(ConfluentProducer, "confluent_kafka", acks="all"),
    client_param(KafkaPythonProducer, "kafka_python", acks="all", enable_idempotence=False),
]


@pytest.mark.feature("kill -9")
@pytest.mark.parametrize(("make", "partitions", "config"), IDEMPOTENT)
def test_idempotent_producers_store_each_record_once(killer, admin, new_producer, name, make, partitions, config):
    topic = create_topic(admin, name, partitions, SEGMENTS)
    producer = new_producer(make, topic, partitions, **config)
    run(killer, [producer], topic, len(WAYS), check_exactly_once)
    assert producer.ledger.failed == {}, "an idempotent producer retries until everything is acknowledged"


@pytest.mark.feature("kill -9")
@pytest.mark.parametrize(("make", "partitions", "config"), ACKS_ALL)
def test_no_acknowledged_record_is_lost(killer, admin, new_producer, name, make, partitions, config):
    topic = create_topic(admin, name, partitions, SEGMENTS)
    producer = new_producer(make, topic, partitions, **config)
    run(killer, [producer], topic, 2, check_nothing_lost)


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_two_clients_write_compressed_batches(killer, admin, new_producer, name):
    """Set KBROKER_COMPAT_KILLS=200 for a longer run."""
    topic = create_topic(admin, name, 2 * PARTITIONS, SEGMENTS)
    confluent = {"enable.idempotence": True, "compression.type": "zstd"}
    python = {"enable_idempotence": True, "compression_type": "gzip"}
    producers = [
        new_producer(ConfluentProducer, topic, 2 * PARTITIONS, **confluent),
        new_producer(KafkaPythonProducer, topic, 2 * PARTITIONS, **python),
    ]
    run(killer, producers, topic, KILLS, check_exactly_once)
    assert [producer.ledger.failed for producer in producers] == [{}, {}]


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_flush_before_ack(killer, admin, new_producer, name):
    """With flush.before.ack many batches wait for one fsync, so at a kill many are in the log and not acknowledged."""
    topic = create_topic(admin, name, PARTITIONS, {**SEGMENTS, "flush.before.ack": "true"})
    producer = new_producer(ConfluentProducer, topic, PARTITIONS, **{"enable.idempotence": True})
    run(killer, [producer], topic, 3, check_exactly_once)
    assert producer.ledger.failed == {}
