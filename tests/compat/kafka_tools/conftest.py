"""Kafka's tools, run against the broker under test, and topics created with kafka-topics."""

from collections.abc import Callable, Iterator

import pytest

from tests.compat.kafka_tools.jvm import Jvm, Run
from tests.compat.support import unique


@pytest.fixture
def tool(jvm: Jvm, bootstrap: str) -> Callable[..., Run]:
    """tool(name, *arguments, stdin=""): runs a tool, which must succeed, against the broker under test."""

    def run(name: str, *arguments: str, stdin: str = "") -> Run:
        return jvm.check(name, "--bootstrap-server", bootstrap, *arguments, stdin=stdin)

    return run


@pytest.fixture
def topic(tool: Callable[..., Run], request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """topic(partitions, {config: value}): the name of a new topic, which is deleted after the test."""
    created: list[str] = []

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = unique(request.node.originalname.removeprefix("test_"))
        options = [word for item in (configs or {}).items() for word in ("--config", "=".join(item))]
        tool("kafka-topics", "--create", "--topic", name, "--partitions", str(partitions), *options)
        created.append(name)
        return name

    yield create
    for name in created:
        tool("kafka-topics", "--delete", "--topic", name)
