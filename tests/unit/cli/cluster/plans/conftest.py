"""A cluster of three brokers in three racks, and a controller that runs plans."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from kbroker.cli.cluster.plans import commands, cordon, requests, run_plan, watch
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.parsing import parse_host_port
from kbroker.cli.common.partitions.reassignments import ReplicaChanges
from kbroker.cli.configs.requests import Changes, Resource
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from tests.unit.cli.cluster.plans.fake_controller import FakeController

MIB = 1 << 20


class FakeCluster:
    """What the commands ask brokers for. `questions`: those that were asked."""

    def __init__(self) -> None:
        self.controller = FakeController()
        self.brokers = [ClusterBroker(1, "a"), ClusterBroker(2, "b"), ClusterBroker(3, "c"), ClusterBroker(4, "c")]
        self.partitions = [
            PlacedPartition("orders", 0, (1, 2), 1, 6 * MIB),
            PlacedPartition("orders", 1, (3, 1), 3, 4 * MIB),
            PlacedPartition("users", 0, (3, 2), 3),
        ]
        # The partitions that move without a plan, and the errors if that is cancelled.
        self.moving: dict[tuple[str, int], ReplicaChanges] = {}
        self.errors: list[str] = []
        self.questions: list[str] = []
        self.write_rates: dict[tuple[str, int], float] = {}
        self.cordoned: set[str] = set()
        # Brokers that do not respond, and those of them that other brokers know to be away.
        self.silent, self.away = {"2"}, {"2"}
        self.no_response: Exception = KafkaConnectionError("no response")

    @contextmanager
    def admin_client(self, bootstrap: str) -> Iterator[Any]:
        parse_host_port(bootstrap, "--bootstrap")
        from kbroker.cli.common.client import client_errors

        with client_errors():
            yield self

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": broker.id, "is_fenced": broker.is_away} for broker in self.brokers]}

    def layout(self, client: Any) -> ClusterLayout:
        return cluster_layout(self.brokers, self.partitions)

    def alter_configs(self, client: Any, resource: Resource, changes: Changes, *, at_any: bool = False) -> None:
        ((operation, value),) = [changes["cordoned.log.dirs"]]
        assert (operation, value) in (("SET", "*"), ("DELETE", None))
        if resource.name in self.silent and not at_any:
            raise self.no_response
        if at_any and resource.name not in self.away:
            raise CliError(f"Unexpected broker id, expected 1, but received {resource.name}")
        (self.cordoned.add if operation == "SET" else self.cordoned.discard)(resource.name)

    def cancel_reassignments(self, client: Any, partitions: Sequence[tuple[str, int]]) -> list[str]:
        assert list(partitions) == sorted(self.moving)
        self.moving = {}
        return self.errors

    def confirm(self, question: str, yes: bool) -> None:
        if not yes:
            self.questions.append(question)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    monkeypatch.setattr(requests, "send_message", cluster.controller.send)
    monkeypatch.setattr(requests, "RETRY_EVERY_S", 0.0)
    monkeypatch.setattr(watch, "EVERY_S", 0.0)
    monkeypatch.setattr(watch, "AWAY_EVERY_S", 0.0)
    monkeypatch.setattr(watch, "describe_log_dirs", lambda *_: {})
    monkeypatch.setattr(run_plan, "measure_write_rates", lambda *_: cluster.write_rates)
    monkeypatch.setattr(cordon, "alter_configs", cluster.alter_configs)
    monkeypatch.setattr(commands, "reassignments_if_known", lambda _: cluster.moving)
    monkeypatch.setattr(commands, "cancel_reassignments", cluster.cancel_reassignments)
    for module in (commands, run_plan):
        monkeypatch.setattr(module, "admin_client", cluster.admin_client)
        monkeypatch.setattr(module, "read_layout", cluster.layout)
        monkeypatch.setattr(module, "confirm", cluster.confirm)
        monkeypatch.setattr(module, "now_ms", lambda: cluster.controller.now_ms)
    return cluster
