"""A broker inside a test: its clock, its disk, and its ends."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.client.groups import commit_offsets
from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition
from kbroker.testing import Broker
from protocol.errors import ErrorCode

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def is_listening(kafka: Broker) -> bool:
    host, _, port = kafka.bootstrap.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def test_records_come_back_as_they_were_produced(kafka: Broker):
    topic = kafka.topic(partitions=3)
    produced = kafka.produce(topic, [(b"k", b"v"), (None, b"w", [("TAGS", b"a")]), (b"k", None), b"x"])
    assert produced[0].partition == produced[2].partition
    records = {(record.partition, record.offset): record for record in kafka.consume(topic)}
    first, second, third, fourth = (records[at] for at in produced)
    assert (first.key, first.value, third.key, third.value) == (b"k", b"v", b"k", None)
    assert (second.value, second.headers, fourth.value) == (b"w", (("TAGS", b"a"),), b"x")


def test_keys_are_divided_as_kafkas_clients_do_and_other_records_in_turn(kafka: Broker):
    topic = kafka.topic(partitions=10)
    # The values of Kafka's own test of murmur2 (UtilsTest), as positive numbers modulo 10.
    keys = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    produced = kafka.produce(topic, [(key, b"v") for key in keys] + [b"3", b"4"])
    expected = [(murmur2 & 0x7FFFFFFF) % 10 for murmur2 in keys.values()]
    assert [record.partition for record in produced] == [*expected, 3, 4]


def test_records_that_do_not_come_are_an_error_that_says_which_came(kafka: Broker):
    topic = kafka.topic()
    kafka.produce(topic, [b"only"])
    with pytest.raises(TimeoutError, match=r"has 1 of 2 records after 0.1 s: .*only"):
        kafka.consume(topic, n=2, timeout_s=0.1)
    with pytest.raises(TimeoutError, match=r"group nobody is not at members=1 after 0.1 s, but Dead with 0 members"):
        kafka.wait_group("nobody", members=1, timeout_s=0.1)
    with pytest.raises(BrokerError):
        kafka.topic(topic)


def test_the_lag_of_a_group_counts_partitions_in_which_it_has_committed_nothing(kafka: Broker):
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [b"a", b"b"], partition=0)
    kafka.produce(topic, [b"c"], partition=1)
    with kafka.client() as cluster:
        commit_offsets(cluster, "slow", {TopicPartition(topic, 0): 2})
        assert kafka.wait_group("slow", lag=1, topic=topic).lag == 1
        with pytest.raises(TimeoutError, match="but Empty with 0 members, lag 1"):
            kafka.wait_group("slow", lag=0, timeout_s=0.1)
        commit_offsets(cluster, "slow", {TopicPartition(topic, 1): 1})
    assert kafka.wait_group("slow", lag=0).lag == 0


def test_a_jump_of_the_clock_deletes_what_retention_no_longer_keeps(kafka: Broker):
    topic = kafka.topic(config={"retention.ms": HOUR_MS})
    kafka.produce(topic, [b"old"])
    kafka.clock.advance(hours=2)
    assert kafka.consume(topic) == []
    kafka.produce(topic, [b"new"])
    assert [record.value for record in kafka.consume(topic)] == [b"new"]


def test_a_jump_of_the_clock_delivers_what_is_delayed_and_hides_what_has_expired(kafka: Broker):
    topic = kafka.topic(config={"kbroker.delay.enable": True, "kbroker.ttl.enable": True})
    at = str(kafka.clock.now_ms() + HOUR_MS).encode()
    kafka.produce(topic, [(None, b"later", [("TIMER_DELIVER_MS", at)])])
    kafka.produce(topic, [(None, b"brief", [("TTL_MS", b"60000")])])
    assert [record.value for record in kafka.consume(topic, n=1)] == [b"brief"]
    kafka.clock.advance(hours=1)
    assert [record.value for record in kafka.consume(topic, n=1)] == [b"later"]


def test_the_clock_moves_forward_only(kafka: Broker):
    with pytest.raises(ValueError, match="forward only"):
        kafka.clock.advance(seconds=-1)


def test_a_killed_broker_comes_back_on_its_port_with_its_data(kafka: Broker):
    topic = kafka.topic()
    kafka.produce(topic, [b"v"])
    address = kafka.bootstrap
    kafka.kill()
    assert not is_listening(kafka)
    kafka.kill()
    kafka.start()
    assert kafka.bootstrap == address
    assert [record.value for record in kafka.consume(topic)] == [b"v"]


def test_a_full_disk_refuses_records_until_it_is_freed(kafka: Broker):
    topic = kafka.topic()
    kafka.disk.fill()
    with pytest.raises(BrokerError) as refused:
        kafka.produce(topic, [b"lost"])
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    kafka.disk.free()
    kafka.clock.advance(seconds=5)
    kafka.produce(topic, [b"kept"])
    assert [record.value for record in kafka.consume(topic)] == [b"kept"]
    kafka.clock.advance(seconds=5)
    kafka.topic()


def test_a_directory_keeps_the_data_and_a_temporary_one_is_removed(tmp_path: Path):
    with Broker({"num.partitions": 2}, directory=tmp_path) as kafka:
        topic = kafka.topic(partitions=-1)
        kafka.produce(topic, [b"0", b"1"])
    with Broker(directory=tmp_path) as kafka:
        assert {(record.partition, record.value) for record in kafka.consume(topic)} == {(0, b"0"), (1, b"1")}


def test_a_forked_process_keeps_neither_the_port_nor_the_lock(kafka: Broker):
    topic = kafka.topic()
    report, end = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        # It can use the broker as any client does, but not move its clock.
        signal.alarm(20)
        os.close(end[1])
        try:
            kafka.produce(topic, [b"v"])
            kafka.clock.advance(seconds=1)
        except BaseException as error:
            os.write(report[1], type(error).__name__.encode())
        os.read(end[0], 1)
        os._exit(0)
    os.close(end[0])
    try:
        assert os.read(report[0], 500) == b"RuntimeError"
        kafka.kill()
        assert not is_listening(kafka)
        kafka.start()
    finally:
        for descriptor in (end[1], *report):
            os.close(descriptor)
        os.waitpid(child, 0)
    assert len(kafka.consume(topic)) == 1


def test_tests_on_an_event_loop_use_coroutines():
    async def story() -> list[bytes | None]:
        async with Broker() as kafka:
            topic = await kafka.in_thread.topic()
            await kafka.in_thread.produce(topic, [b"v"])
            return [record.value for record in await kafka.in_thread.consume(topic)]

    assert asyncio.run(story()) == [b"v"]


def test_it_needs_no_kafka_client():
    """Importing it imports neither kafka-python nor others that applications use in versions of their own."""
    program = (
        "import sys, kbroker.testing.broker as b; print(sorted({'kafka','typer','kazoo','rich'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output == "[]\n"


def test_the_number_of_a_socket_that_was_closed_belongs_to_other_files(kafka: Broker):
    """The event loop knows the socket for a while: a forked process must not close what has its number now."""
    (thread,) = kafka.running()
    host, _, port = kafka.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        address = client.getsockname()
        deadline = time.monotonic() + 10
        while not (accepted := [each for each in list(thread.loop._transports.values()) if peer(each) == address]):
            assert time.monotonic() < deadline
        number = accepted[0]._sock_fd
        assert number in thread.loop.descriptors()
    while number in thread.loop.descriptors():
        assert time.monotonic() < deadline
    assert number in thread.loop._transports


def peer(transport: asyncio.Transport) -> object:
    return transport.get_extra_info("peername")
