"""The end of a run waits for replicas under load, but not for followers that producers may outrun."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcher
from kbroker.simulation.scenarios import run as scenario_run
from kbroker.simulation.scenarios.plan import Plan, Topic
from kbroker.simulation.scenarios.run import Result, simulate

# In this seed one of the producers does not wait for followers: it uses acks=0.
SEED = 1
FETCH_INTERVAL_S = 0.05


def run(response_max_bytes: str, monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> Result:
    def shape(plan: Plan) -> None:
        plan.faults, plan.concurrent_faults, plan.seconds, plan.recreation = {}, 0, 2.0, False
        plan.producers, plan.members, plan.readers, plan.pause_between_sends_s = 3, 0, 0, 0.01
        plan.transactors = plan.transformers = plan.stale_clients = 0
        plan.topics = {"topic": Topic(1, {"min.insync.replicas": "1"})}
        plan.broker |= {
            "replica.lag.time.max.ms": "1000",
            "replica.fetch.max.bytes": "1048576",
            "replica.fetch.response.max.bytes": response_max_bytes,
        }

    monkeypatch.setattr(scenario_run, "LOAD_TIMEOUT_S", 3.0)
    monkeypatch.setattr(scenario_run, "STEP_TIMEOUT_S", timeout_s)
    return simulate(SEED, "cluster", shape=shape)


@pytest.fixture
def slow_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    send = ReplicaFetcher._send

    def send_later(self: ReplicaFetcher, request: Any) -> Coroutine[Any, Any, memoryview]:
        async def sent() -> memoryview:
            await asyncio.sleep(FETCH_INTERVAL_S)
            return await send(self, request)

        return sent()

    monkeypatch.setattr(ReplicaFetcher, "_send", send_later)


@pytest.mark.usefixtures("slow_fetches")
def test_followers_that_fetch_a_batch_at_a_time_may_be_in_sync_after_the_load(monkeypatch: pytest.MonkeyPatch):
    result = run("4096", monkeypatch, 60.0)
    assert not result.report(), result.report()
    assert "not in sync after 3.0 s: topic-0" in result.text()
    assert "; the load ends" in result.text()


@pytest.mark.usefixtures("slow_fetches")
def test_they_must_be_in_sync_in_time_after_the_load(monkeypatch: pytest.MonkeyPatch):
    assert "LivenessError: not in sync after 2.0 s: topic-0" in run("4096", monkeypatch, 2.0).failure


def test_other_followers_must_be_in_sync_under_load(monkeypatch: pytest.MonkeyPatch):
    result = run(str(10 << 20), monkeypatch, 60.0)
    assert not result.report(), result.report()
    assert "; the load ends" not in result.text()
    monkeypatch.setattr(ReplicaFetcher, "start", lambda self: None)
    assert "LivenessError: not in sync after 5.0 s: topic-0" in run(str(10 << 20), monkeypatch, 5.0).failure
