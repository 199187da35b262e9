"""Recovery of damaged segments, and a recovery that is killed itself."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from struct import Struct

import pytest
from confluent_kafka import Producer

from tests.compat.crash.background_producers import ConfluentProducer
from tests.compat.crash.checks import check_exactly_once, offsets_of, read_topic, read_topics, wait_for_acknowledgements
from tests.compat.crash.conftest import create_topic
from tests.compat.crash.killer import RESPONSES_HELD, repaired_logs
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually

BATCHES = 40
_BATCH_START = Struct(">qi")  # base offset, size


def batch_ends(path: Path) -> list[int]:
    """Return the positions at which the batches of a segment end."""
    data = path.read_bytes()
    ends = []
    position = 0
    while position < len(data):
        position += _BATCH_START.size + _BATCH_START.unpack_from(data, position)[1]
        ends.append(position)
    assert position == len(data)
    return ends


def truncate(to: Callable[[list[int]], int]) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, to(batch_ends(path)))


def append(data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("ab") as file:
            file.write(data)

    return damage


def flip_a_bit(batch: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[batch_ends(path)[batch] - 3] ^= 0x40
        path.write_bytes(data)

    return damage


# What is done to the last segment, how many of its 40 batches survive, whether recovery repairs something.
# Flipped bits are detected above the recovery point only.
DAMAGE: dict[str, tuple[Callable[[Path], None], int, bool]] = {
    "cut: the last byte": (truncate(lambda ends: ends[-1] - 1), 39, True),
    "cut: all but a few bytes of a header": (truncate(lambda ends: ends[-2] + 5), 39, True),
    "cut: all but most of a header": (truncate(lambda ends: ends[-2] + 60), 39, True),
    "cut: three batches and a half": (truncate(lambda ends: ends[-4] - 20), 36, True),
    "cut: two whole batches": (truncate(lambda ends: ends[-3]), 38, False),
    "cut: everything": (truncate(lambda _: 0), 0, False),
    "added: zeros": (append(bytes(5000)), 40, True),
    "added: noise": (append(bytes(range(1, 200))), 40, True),
    "flipped: a bit of the last batch": (flip_a_bit(-1), 39, True),
    "flipped: a bit in the middle": (flip_a_bit(20), 20, True),
}


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
@pytest.mark.parametrize(
    ("settings", "trusted"),
    [({}, False), ({"log.flush.offset.checkpoint.interval.ms": "100"}, True)],
    ids=["above the recovery point", "below it"],
)
def test_a_torn_tail_is_cut_to_the_longest_valid_prefix(killer, admin, proxy, name, trusted):
    broker = killer.broker
    damages = {kind: damage for kind, damage in DAMAGE.items() if not (trusted and kind.startswith("flipped"))}
    topic_by_kind = {kind: create_topic(admin, f"{name}-{number}", 1) for number, kind in enumerate(damages)}
    values = [b"value %d " % number + bytes(100) for number in range(BATCHES)]
    settings = {"bootstrap.servers": proxy.address, "batch.num.messages": 1, "linger.ms": 0, "log_level": 2}

    def produce(topics: list[str], values: list[bytes]) -> None:
        producer = Producer({**settings, "enable.idempotence": True})
        for topic in topics:
            for value in values:
                producer.produce(topic, value, partition=0)
        assert producer.flush(DEADLINE_S) == 0

    produce(list(topic_by_kind.values()), values)
    if trusted:
        eventually(lambda: all(killer.is_checkpointed(topic, 0) for topic in topic_by_kind.values()), "checkpoints")
    broker.kill()
    sizes = {}
    for kind, (damage, _, _) in damages.items():
        [path] = broker.partition_dir(topic_by_kind[kind], 0).glob("*.log")
        damage(path)
        sizes[kind] = path.stat().st_size
    broker.start()
    repairs = repaired_logs(broker)
    read = read_topics(proxy.address, dict.fromkeys(topic_by_kind.values(), 1))
    for kind, (_, survive, repair) in damages.items():
        [records] = read[topic_by_kind[kind]]
        assert [value for _, _, value in records] == values[:survive], kind
        lines = [text for text in repairs if f" partition={topic_by_kind[kind]}-0 " in text]
        [path] = broker.partition_dir(topic_by_kind[kind], 0).glob("*.log")
        if repair:
            kept = path.stat().st_size
            assert re.search(rf"{path.name}: cut from {sizes[kind]} to {kept} bytes: \w+", "\n".join(lines)), kind
        else:
            assert lines == [], kind
    produce(list(topic_by_kind.values()), [b"after"])
    broker.restart()
    assert repaired_logs(broker) == [], "a repair is not repeated"
    read = read_topics(proxy.address, dict.fromkeys(topic_by_kind.values(), 1))
    for kind, (_, survive, _) in damages.items():
        [records] = read[topic_by_kind[kind]]
        assert [value for _, _, value in records] == [*values[:survive], b"after"], kind


def has_opened_segments(broker: BrokerProcess) -> bool:
    """Return whether the process has segment files open: its recovery has begun."""
    broker.ready()
    files = Path(f"/proc/{broker.pid}/fd")
    for link in files.iterdir():
        try:
            if link.readlink().suffix == ".log":
                return True
        except FileNotFoundError:
            continue
    return False


def has_bound_port(broker: BrokerProcess) -> bool:
    """Return whether the port is bound, which happens before any log is opened."""
    broker.ready()
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_a_recovery_that_is_killed_loses_nothing(killer, admin, new_producer, name):
    partitions = 3
    topic = create_topic(admin, name, partitions, {"segment.bytes": str(1 << 20)})
    producer = new_producer(ConfluentProducer, topic, partitions, **{"enable.idempotence": True})
    producer.start()
    wait_for_acknowledgements(producer, 2000)
    killer.kill(producer, topic, RESPONSES_HELD)
    broker = killer.broker
    for reached in (has_bound_port, has_opened_segments, has_bound_port, BrokerProcess.ready):
        broker.launch()
        eventually(lambda reached=reached: reached(broker), "the moment of the kill", interval=0.001)
        broker.kill()
    killer.start()
    wait_for_acknowledgements(producer, 100)
    producer.stop()
    assert producer.ledger.failed == {}
    records = read_topic(killer.proxy.address, topic, partitions)
    check_exactly_once(producer.ledger, offsets_of(producer.ledger, records))

    broker.stop()
    broker.start()
    assert repaired_logs(broker) == [], "no repairs after a clean stop"
    broker.stop()
    # Without these files the whole log is read and checked.
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (broker.data_dir / name).unlink()
    broker.start()
    assert repaired_logs(broker) == [], "every batch of every segment is valid"
    assert read_topic(killer.proxy.address, topic, partitions) == records
