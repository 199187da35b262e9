"""What self-healing does about brokers that are away, or that have returned, as text and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.cli.cluster.plans.requests import PlanRequests
from kbroker.cli.common.formatting import count_text, format_duration
from kbroker.cli.common.output import print_note
from protocol.messages.k10001_describe_reassignment_plan import DescribedHealing

ABSENT = ("fenced", "unknown")
# The end of a line about a broker that is away, by the state; one that has returned.
_REBUILT = {
    "waiting": "to be rebuilt elsewhere in {time}",
    "outage": "not rebuilt while more brokers are away than live",
    "blocked": "not rebuilt before another plan has ended, or its throttle is removed: kbroker brokers plan",
    "running": "being rebuilt: kbroker brokers plan --watch",
    "given up": "not rebuilt, since that plan was cancelled",
    "impossible": "not rebuilt: no live broker may hold them, or no replica leads (see the log of the controller)",
    "due": "about to be rebuilt",
}
_GIVEN_BACK = {
    "waiting": "it gets replicas back in {time}",
    "outage": "it gets replicas back when fewer brokers are away",
    "blocked": "it gets replicas back when another plan has ended",
    "running": "it gets replicas back: kbroker brokers plan --watch",
    "due": "it is about to get replicas back",
}


def read_healing(client: Any, brokers: Sequence[Mapping[str, Any]]) -> list[DescribedHealing]:
    """Return what self-healing does if a broker is away or has no replicas. `brokers`: with state and replicas."""
    if not any(broker["state"] in ABSENT or not broker["replicas"] for broker in brokers):
        return []
    return PlanRequests(client).healing_if_known()


def print_healing(healing: Sequence[DescribedHealing], now_ms: int) -> None:
    for broker in healing:
        print_note(healing_text(broker, now_ms))


def healing_text(broker: DescribedHealing, now_ms: int) -> str:
    """Return a line about one broker."""
    time = format_duration(broker.remaining_ms)
    if not broker.is_away:
        return f"broker {broker.broker_id} is back: {_GIVEN_BACK.get(broker.state, broker.state).format(time=time)}"
    away = f"broker {broker.broker_id} is away"
    if 0 <= broker.since_ms < now_ms:
        duration = format_duration(round((now_ms - broker.since_ms) / 1000) * 1000)
        away = f"broker {broker.broker_id} has been away for {duration}"
    verb = "is" if broker.replicas == 1 else "are"
    end = _REBUILT.get(broker.state, broker.state).format(time=time)
    return f"{away}: its {count_text(broker.replicas, 'replica')} {verb} {end}"


def healing_json(broker: DescribedHealing) -> dict[str, Any]:
    return {
        "broker": broker.broker_id,
        "is_away": broker.is_away,
        "state": broker.state,
        "replicas": broker.replicas,
        "since_ms": broker.since_ms if broker.since_ms >= 0 else None,
        "remaining_ms": broker.remaining_ms,
    }
