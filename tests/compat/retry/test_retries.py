"""Records that fail go through their retry topic to the dead-letter topic, while others pass; a consumer is killed."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kbroker.cli.app import run
from tests.compat.support import DEADLINE_S, eventually

pytestmark = [pytest.mark.compat, pytest.mark.feature("retries and dead letters")]

PROGRAM = Path(__file__).parent / "programs" / "retrying.py"
VALUES = ["first", "bad-1", "once-1", "second", "kill", "bad-2", "last"]
SUCCEED = {"first", "once-1", "second", "kill", "last"}


@contextmanager
def program(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(PROGRAM), *args], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def reader(bootstrap: str, *topics: str) -> Iterator[Any]:
    """A read_committed consumer of partition 0 of topics, from their beginnings."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", fetch_max_wait_ms=50)
    partitions = [TopicPartition(topic, 0) for topic in topics]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    try:
        yield consumer
    finally:
        consumer.close()


@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize(
    "client",
    [pytest.param(name, marks=pytest.mark.client(name)) for name in ("kafka_python", "confluent_kafka", "aiokafka")],
)
def test_failed_records_do_not_block_others(
    bootstrap: str, name: str, group: str, tmp_path: Path, client: str, mode: str
) -> None:
    output, dead = f"{name}-out", f"dlq.{name}"
    assert run(["topics", "create", name, output, "-p", "1", "-b", bootstrap]) == 0
    create = ["retry", "create", name, "--group", group, "--attempts", "3", "--delays", "1s,1s", "-p", "1"]
    assert run([*create, "-b", bootstrap]) == 0
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for value in VALUES:
        producer.send(name, value.encode(), key=b"k", headers=[("trace", b"7")], timestamp_ms=1_700_000_000_000)
    producer.flush()
    producer.close()
    args = (client, bootstrap, name, group, output, str(tmp_path / "marker"), mode)
    with program(*args) as killed:
        _, errors = killed.communicate(timeout=DEADLINE_S)
        assert killed.returncode == -signal.SIGKILL, errors.decode()

    outputs: Counter[str] = Counter()
    letters: list[Any] = []
    with program(*args) as process, reader(bootstrap, output, dead) as consumer:

        def has_all() -> bool:
            assert process.poll() is None, process.communicate()[1].decode()
            for tp, records in consumer.poll(timeout_ms=200).items():
                if tp.topic == output:
                    outputs.update(record.value.decode() for record in records)
                else:
                    letters.extend(records)
            return outputs.keys() >= SUCCEED and {letter.value for letter in letters} >= {b"bad-1", b"bad-2"}

        eventually(has_all, "all records are processed or dead", interval=0)
    assert outputs.keys() == SUCCEED
    if mode == "exactly-once":
        assert set(outputs.values()) == {1}
        assert sorted(letter.value for letter in letters) == [b"bad-1", b"bad-2"]
    for letter in letters:
        headers = dict(letter.headers)
        assert headers["__dlq.errors.topic"] == name.encode()
        assert headers["__dlq.errors.offset"] == str(VALUES.index(letter.value.decode())).encode()
        assert headers["__dlq.errors.group"] == group.encode()
        assert headers["__dlq.errors.delivery.count"] == b"3"
        assert headers["__dlq.errors.message"] == b"cannot process " + letter.value
        assert headers["kafka_dlt-original-timestamp"] == (1_700_000_000_000).to_bytes(8)
        assert (letter.key, headers["trace"]) == (b"k", b"7")
