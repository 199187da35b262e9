"""`kbroker start` with its metadata in a real ZooKeeper."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.coordination.interface import Create, Set
from kbroker.coordination.zookeeper.open_session import open_session
from tests.compat.support import BrokerProcess, eventually, unique
from tests.compat.zookeeper.server import MAX_SESSION_S, MIN_SESSION_S, ZooKeeperServer


@pytest.fixture
def connect(apache_zookeeper: ZooKeeperServer) -> str:
    return f"{apache_zookeeper.address}/{unique('clusters')}/first"


@pytest.fixture
def broker(tmp_path: Path, connect: str) -> Iterator[BrokerProcess]:
    timeout_ms = str(round(MIN_SESSION_S * 1000))
    broker = BrokerProcess(tmp_path, {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": timeout_ms})
    yield broker
    broker.end()


def children(connect: str, path: str) -> list[str]:
    async def read() -> list[str]:
        address, _, chroot = connect.partition("/")
        session = await open_session(asyncio.get_running_loop(), ZooKeeperSettings((address,), f"/{chroot}"))
        names = await session.children(path)
        await session.close()
        return names

    return asyncio.run(read())


def test_a_broker_finds_its_metadata_in_zookeeper_again(broker: BrokerProcess, connect: str) -> None:
    broker.start()
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([NewTopic("orders", 3, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    producer.send("orders", b"first", partition=2).get(60)
    producer.close()
    assert children(connect, "/kbroker/topics") == ["orders"]
    assert not (broker.data_dir / "coordination").exists()
    broker.stop()
    # A clean stop ends the session.
    assert children(connect, "/kbroker/brokers") == []
    broker.start()
    # After kill -9, the next start waits until the former session has expired.
    broker.restart()
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    assert next(consumer).value == b"first"
    consumer.close()
    broker.stop()


def test_a_broker_joins_again_when_its_session_has_expired(broker: BrokerProcess, connect: str) -> None:
    broker.start()
    broker.freeze()
    eventually(lambda: children(connect, "/kbroker/brokers") == [], "the end of the session")
    broker.resume()
    eventually(lambda: "the broker has joined the cluster again" in broker.errors, "the broker joins again")
    assert "the ZooKeeper session has ended" in broker.errors
    assert "Traceback" not in broker.errors
    assert children(connect, "/kbroker/brokers") == ["1"]
    broker.stop()


def test_a_broker_serves_while_zookeeper_is_restarted(
    apache_zookeeper: ZooKeeperServer, tmp_path: Path, connect: str
) -> None:
    timeout_ms = str(round(MAX_SESSION_S * 1000))
    broker = BrokerProcess(tmp_path, {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": timeout_ms})
    try:
        broker.start()
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        admin.create_topics([NewTopic("before", 1, 1)])
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
        # The first producer id of a broker is reserved in ZooKeeper.
        producer.send("before", b"first").get(30)
        apache_zookeeper.kill()
        producer.send("before", b"meanwhile").get(30)
        producer.close()
        apache_zookeeper.start()
        eventually(partial(_created, admin), "a topic", interval=0.2)
        assert children(connect, "/kbroker/topics") == ["after", "before"]
        admin.close()
        broker.stop()
    finally:
        broker.end()


def _created(admin: KafkaAdminClient) -> bool:
    if "after" in admin.list_topics():
        return True
    try:
        admin.create_topics([NewTopic("after", 1, 1)], timeout_ms=10_000)
    except Exception:
        return False
    return True


def test_zookeepers_time_comes_with_writes(connect: str) -> None:
    """A broker compares it with its own clock."""

    async def times() -> list[int]:
        address, _, chroot = connect.partition("/")
        found: list[int] = []
        settings = ZooKeeperSettings((address,), f"/{chroot}")
        session = await open_session(asyncio.get_running_loop(), settings, on_server_time=found.append)
        await session.multi([Create("/node", b""), Set("/node", b"1")])
        await session.close()
        return found

    (time_ms,) = asyncio.run(times())
    assert abs(time_ms / 1000 - time.time()) < 60
