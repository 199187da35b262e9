"""Files that a crash has damaged, and a recovery that is killed itself."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from struct import Struct

import pytest
from confluent_kafka import Producer

from tests.compat.crash.conftest import create_topic
from tests.compat.crash.kills import HELD, check_exactly_once, offsets_of, progress, read_all, read_topics, repaired
from tests.compat.crash.writers import ConfluentWriter
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually

BATCHES = 40
_HEAD = Struct(">qi")


def ends(path: Path) -> list[int]:
    """Positions at which the batches of a segment end."""
    data = path.read_bytes()
    found = []
    position = 0
    while position < len(data):
        position += _HEAD.size + _HEAD.unpack_from(data, position)[1]
        found.append(position)
    assert position == len(data)
    return found


def cut(to: Callable[[list[int]], int]) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, to(ends(path)))


def append(data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("ab") as file:
            file.write(data)

    return damage


def flip(batch: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[ends(path)[batch] - 3] ^= 0x40
        path.write_bytes(data)

    return damage


# What is done to the last segment, how many of its 40 batches survive, whether there is something to be repaired.
# Bits that flip are looked for above the recovery point only.
DAMAGE: dict[str, tuple[Callable[[Path], None], int, bool]] = {
    "the last byte": (cut(lambda ends: ends[-1] - 1), 39, True),
    "all but a few bytes of a header": (cut(lambda ends: ends[-2] + 5), 39, True),
    "all but most of a header": (cut(lambda ends: ends[-2] + 60), 39, True),
    "three batches and a half": (cut(lambda ends: ends[-4] - 20), 36, True),
    "two whole batches": (cut(lambda ends: ends[-3]), 38, False),
    "everything": (cut(lambda _: 0), 0, False),
    "zeros follow": (append(bytes(5000)), 40, True),
    "noise follows": (append(bytes(range(1, 200))), 40, True),
    "a bit of the last batch": (flip(-1), 39, True),
    "a bit in the middle": (flip(20), 20, True),
}


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
@pytest.mark.parametrize(
    ("settings", "trusted"),
    [({}, False), ({"log.flush.offset.checkpoint.interval.ms": "100"}, True)],
    ids=["above the recovery point", "below it"],
)
def test_a_torn_tail_is_cut_to_the_longest_valid_prefix(killer, admin, line, name, trusted):
    broker = killer.broker
    damages = {what: damage for what, damage in DAMAGE.items() if not (trusted and what.startswith("a bit"))}
    made = {what: create_topic(admin, f"{name}-{number}", 1) for number, what in enumerate(damages)}
    values = [b"value %d " % number + bytes(100) for number in range(BATCHES)]
    settings = {"bootstrap.servers": line.address, "batch.num.messages": 1, "linger.ms": 0, "log_level": 2}

    def write(topics: list[str], some: list[bytes]) -> None:
        producer = Producer({**settings, "enable.idempotence": True})
        for topic in topics:
            for value in some:
                producer.produce(topic, value, partition=0)
        assert producer.flush(DEADLINE_S) == 0

    write(list(made.values()), values)
    if trusted:
        eventually(lambda: all(killer.checkpointed(topic, 0) for topic in made.values()), "checkpoints")
    broker.kill()
    sizes = {}
    for what, (damage, _, _) in damages.items():
        [path] = broker.partition_dir(made[what], 0).glob("*.log")
        damage(path)
        sizes[what] = path.stat().st_size
    broker.start()
    said = repaired(broker)
    read = read_topics(line.address, dict.fromkeys(made.values(), 1))
    for what, (_, survive, repair) in damages.items():
        [found] = read[made[what]]
        assert [value for _, _, value in found] == values[:survive], what
        lines = [text for text in said if f" partition={made[what]}-0 " in text]
        [path] = broker.partition_dir(made[what], 0).glob("*.log")
        if repair:
            kept = path.stat().st_size
            assert re.search(rf"{path.name}: cut from {sizes[what]} to {kept} bytes: \w+", "\n".join(lines)), what
        else:
            assert lines == [], what
    write(list(made.values()), [b"after"])
    broker.restart()
    assert repaired(broker) == [], "what was cut is not seen again"
    read = read_topics(line.address, dict.fromkeys(made.values(), 1))
    for what, (_, survive, _) in damages.items():
        [found] = read[made[what]]
        assert [value for _, _, value in found] == [*values[:survive], b"after"], what


def opened_segments(broker: BrokerProcess) -> bool:
    """Whether the process has segment files open: it is at its recovery, or past it."""
    broker.ready()
    files = Path(f"/proc/{broker.pid}/fd")
    for link in files.iterdir():
        try:
            if link.readlink().suffix == ".log":
                return True
        except FileNotFoundError:
            continue
    return False


def bound(broker: BrokerProcess) -> bool:
    """Whether its port is taken, which happens before any log is opened."""
    broker.ready()
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_a_recovery_that_is_killed_loses_nothing(killer, admin, writing, name):
    partitions = 3
    topic = create_topic(admin, name, partitions, {"segment.bytes": str(1 << 20)})
    writer = writing(ConfluentWriter, topic, partitions, **{"enable.idempotence": True})
    writer.start()
    progress(writer, 2000)
    killer.kill(writer, topic, HELD)
    broker = killer.broker
    for reached in (bound, opened_segments, bound, BrokerProcess.ready):
        broker.launch()
        eventually(lambda reached=reached: reached(broker), "the moment to be killed at", interval=0.001)
        broker.kill()
    killer.start()
    progress(writer, 100)
    writer.stop()
    assert writer.ledger.refused == {}
    records = read_all(killer.line.address, topic, partitions)
    check_exactly_once(writer.ledger, offsets_of(writer.ledger, records))

    broker.stop()
    broker.start()
    assert repaired(broker) == [], "a clean stop leaves nothing to be repaired"
    broker.stop()
    # Without its marks of what is sound, all of the log is read and checked.
    for mark in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (broker.data_dir / mark).unlink()
    broker.start()
    assert repaired(broker) == [], "every batch of every segment is sound"
    assert read_all(killer.line.address, topic, partitions) == records
