"""A broker at the end of a line, and the report of what was in flight at each kill."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.conftest import OUTSIDE
from tests.compat.crash.kills import Killer
from tests.compat.crash.line import Line
from tests.compat.crash.writers import MakeWriter, Writer
from tests.compat.reports import reports
from tests.compat.support import DEADLINE_S, BrokerProcess, running_broker

_REPORT = "in flight at each kill -9"


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


@pytest.fixture
def settings() -> dict[str, str]:
    """Of the broker. A module may have its own."""
    return {}


@pytest.fixture
def broker(tmp_path: Path, line: Line, settings: dict[str, str]) -> Iterator[BrokerProcess]:
    """A broker that its clients reach over the line only."""
    if OUTSIDE:
        pytest.skip("not run: it would kill the broker, and this one is not the suite's own")
    with running_broker(tmp_path, settings, advertise=line.address) as own:
        line.lead_to(own.bootstrap)
        yield own


@pytest.fixture
def killer(
    broker: BrokerProcess, line: Line, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Killer]:
    made = Killer(broker, line)
    yield made
    lines = reports(request.config).section(_REPORT)
    for number, kill in enumerate(made.kills, 1):
        record_property(f"kill {number}", str(kill))
        lines.append(f"{request.node.name}, kill {number}, {kill}")
    lines += [f"{request.node.name}: {repair}" for repair in made.repairs]


@pytest.fixture
def admin(line: Line, broker: BrokerProcess) -> AdminClient:
    return connected(line)


@pytest.fixture
def writing(line: Line) -> Iterator[Callable[..., Writer]]:
    """writing(class, topic, partitions, **settings): a producer that is ended with the test."""
    made: list[Writer] = []

    def create(make: MakeWriter, topic: str, partitions: int, **settings: Any) -> Writer:
        made.append(make(line.address, f"writer-{len(made)}", topic, partitions, **settings))
        return made[-1]

    yield create
    for writer in made:
        writer.abandon()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python logs every attempt to reach a broker that is dead."""
    caplog.set_level(logging.CRITICAL, logger="kafka")


def connected(line: Line) -> AdminClient:
    """A new client: one that the broker's death has surprised may fail its first request afterwards."""
    return AdminClient({"bootstrap.servers": line.address, "log_level": 2})


def create_topic(admin: AdminClient, name: str, partitions: int, configs: dict[str, str] | None = None) -> str:
    """A topic that exists when this returns."""
    admin.create_topics([NewTopic(name, partitions, 1, config=configs or {})])[name].result(DEADLINE_S)
    return name
