"""How long brokers have been away, or back.

The controller stores the time when it fences or unfences a broker, so that the next controller knows it. That is a wall
clock, which may jump or differ from that of the next controller, and after an outage of everything a broker that is
about to start has an old time. So a controller must also have seen the broker in its state for OBSERVED_MS itself, by
its monotonic clock, or for the whole time if that is shorter. Another controller begins to observe anew.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.metadata.image import BrokerHistory, KnownBroker

OBSERVED_MS = 60_000


class BrokerState(NamedTuple):
    """`epoch` is 0 of a broker that is not registered. Each registration has another one."""

    is_away: bool
    epoch: int


class ObservedBrokers:
    """The states of brokers as one controller has seen them."""

    def __init__(self) -> None:
        self._controller_epoch = 0
        # Since when a broker is in its state, by the monotonic clock.
        self._since: dict[int, tuple[BrokerState, int]] = {}

    def update(self, controller_epoch: int, states: Mapping[int, BrokerState], mono_ms: int) -> None:
        """Record the states that brokers have now."""
        if controller_epoch != self._controller_epoch:
            self._controller_epoch, self._since = controller_epoch, {}
        self._since = {
            broker_id: before
            if (before := self._since.get(broker_id)) is not None and before[0] == state
            else (state, mono_ms)
            for broker_id, state in states.items()
        }

    def remaining_ms(self, broker_id: int, history: BrokerHistory, after_ms: int, *, now_ms: int, mono_ms: int) -> int:
        """Return how long a broker must stay in its state until it has been in it for `after_ms`; 0 if it has."""
        observed_ms = mono_ms - self._since[broker_id][1]
        stored_ms = now_ms - history.since_ms if history.since_ms >= 0 else 0
        unobserved_ms = min(after_ms, OBSERVED_MS) - observed_ms
        return max(unobserved_ms, after_ms - max(observed_ms, stored_ms), 0)


def broker_states(known: Mapping[int, KnownBroker], replicas: Mapping[int, int]) -> dict[int, BrokerState]:
    """Return the states of the registered brokers, and of those that only replicas are assigned to."""
    states = {broker_id: BrokerState(True, 0) for broker_id in replicas}
    for broker_id, broker in known.items():
        states[broker_id] = BrokerState(broker.fenced, broker.registration.epoch)
    return states
