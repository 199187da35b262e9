"""What `kbroker cluster status` and `brokers list` say about brokers that are away, or have returned."""

from typing import Any

import pytest

from kbroker.cli.cluster.plans.requests import PlanRequests
from kbroker.cli.cluster.self_healing import healing_json, healing_text, read_healing
from kbroker.metadata.reassignments.healing_states import HealingState
from protocol.messages.k10001_describe_reassignment_plan import DescribedHealing

MINUTE = 60_000


def row(state: HealingState, *, is_away: bool = True, replicas: int = 40) -> DescribedHealing:
    return DescribedHealing(
        broker_id=3, is_away=is_away, state=state.value, replicas=replicas, since_ms=0, remaining_ms=18 * MINUTE
    )


def test_lines():
    assert healing_text(row(HealingState.WAITING), 12 * MINUTE) == (
        "broker 3 has been away for 12m: its 40 replicas are to be rebuilt elsewhere in 18m"
    )
    assert healing_text(row(HealingState.RUNNING, replicas=1), 12 * MINUTE) == (
        "broker 3 has been away for 12m: its 1 replica is being rebuilt: kbroker brokers plan --watch"
    )
    assert healing_text(row(HealingState.WAITING, is_away=False), 0) == (
        "broker 3 is back: it gets replicas back in 18m"
    )


@pytest.mark.parametrize("state", HealingState)
def test_every_state_has_a_text(state: HealingState) -> None:
    assert not healing_text(row(state), 1).endswith(f"are {state.value}")


def test_the_json():
    broker = row(HealingState.OUTAGE)
    broker.since_ms = -1
    assert healing_json(broker) == {
        "broker": 3, "is_away": True, "state": "outage", "replicas": 40, "since_ms": None, "remaining_ms": 18 * MINUTE
    }  # fmt: skip


def test_the_controller_is_asked_only_if_a_broker_is_away_or_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(PlanRequests, "healing_if_known", lambda _: asked.append(1) or [])
    read_healing(None, [{"state": "running", "replicas": 3}, {"state": "controller", "replicas": 2}])
    assert asked == []
    read_healing(None, [{"state": "fenced", "replicas": 3}])
    read_healing(None, [{"state": "running", "replicas": 0}])
    assert len(asked) == 2
