"""A broker that is killed (kill -9) behind a proxy, and a report of what was outstanding at each kill."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.crash.background_producers import BackgroundProducer, MakeProducer
from tests.compat.crash.killer import Killer
from tests.compat.crash.proxy import Proxy
from tests.compat.reports import reports
from tests.compat.support import DEADLINE_S, BrokerProcess, need_own_broker, running_broker

_REPORT = "outstanding at each kill -9"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture
def settings() -> dict[str, str]:
    """The broker's configs. A module may override this fixture."""
    return {}


@pytest.fixture
def broker(tmp_path: Path, proxy: Proxy, settings: dict[str, str]) -> Iterator[BrokerProcess]:
    """A broker that advertises the address of the proxy."""
    need_own_broker()
    with running_broker(tmp_path, settings, advertise=proxy.address) as broker:
        proxy.forward_to(broker.bootstrap)
        yield broker


@pytest.fixture
def killer(
    broker: BrokerProcess, proxy: Proxy, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Killer]:
    killer = Killer(broker, proxy)
    yield killer
    lines = reports(request.config).section(_REPORT)
    for number, kill in enumerate(killer.kills, 1):
        record_property(f"kill {number}", str(kill))
        lines.append(f"{request.node.name}, kill {number}, {kill}")
    lines += [f"{request.node.name}: {repair}" for repair in killer.repairs]


@pytest.fixture
def admin(proxy: Proxy, broker: BrokerProcess) -> AdminClient:
    return admin_client(proxy)


@pytest.fixture
def new_producer(proxy: Proxy) -> Iterator[Callable[..., BackgroundProducer]]:
    """new_producer(class, topic, partitions, **settings): a producer that ends with the test."""
    producers: list[BackgroundProducer] = []

    def create(make: MakeProducer, topic: str, partitions: int, **settings: Any) -> BackgroundProducer:
        producers.append(make(proxy.address, f"producer-{len(producers)}", topic, partitions, **settings))
        return producers[-1]

    yield create
    for producer in producers:
        producer.abandon()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python logs every attempt to connect to a broker that is down."""
    caplog.set_level(logging.CRITICAL, logger="kafka")


def admin_client(proxy: Proxy) -> AdminClient:
    """Return a new client; one that was connected when the broker was killed may fail its first request afterwards."""
    return AdminClient({"bootstrap.servers": proxy.address, "log_level": 2})


def create_topic(admin: AdminClient, name: str, partitions: int, configs: dict[str, str] | None = None) -> str:
    """Create a topic and return its name."""
    admin.create_topics([NewTopic(name, partitions, 1, config=configs or {})])[name].result(DEADLINE_S)
    return name
