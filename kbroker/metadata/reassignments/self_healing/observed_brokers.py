"""Measures how long brokers have been fenced or unfenced.

The controller stores the wall-clock time when it fences or unfences a broker, so that the next controller knows it. The
clock may jump, or differ from the next controller's; and after an outage of the whole cluster, brokers that are about
to start have old times. So a controller must also have observed the broker in its state for OBSERVED_MS by its own
monotonic clock, or for the whole required time if that is shorter. Each controller begins its own observation.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kbroker.metadata.image import BrokerHistory, KnownBroker

OBSERVED_MS = 60_000


class BrokerState(NamedTuple):
    """`epoch`: the broker epoch, 0 for a broker that is not registered. Each registration has a new one."""

    is_away: bool
    epoch: int


class ObservedBrokers:
    """The states of brokers as one controller has seen them."""

    def __init__(self) -> None:
        self._controller_epoch = 0
        # Each broker's state, and the monotonic time since which it is in it.
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
        """Return the ms until a broker has been in its state for `after_ms`; 0 if it has been."""
        observed_ms = mono_ms - self._since[broker_id][1]
        stored_ms = now_ms - history.since_ms if history.since_ms >= 0 else 0
        unobserved_ms = min(after_ms, OBSERVED_MS) - observed_ms
        return max(unobserved_ms, after_ms - max(observed_ms, stored_ms), 0)


def broker_states(known: Mapping[int, KnownBroker], replicas: Mapping[int, int]) -> dict[int, BrokerState]:
    """Return the states of the registered brokers, and of unregistered brokers that have replicas."""
    states = {broker_id: BrokerState(True, 0) for broker_id in replicas}
    for broker_id, broker in known.items():
        states[broker_id] = BrokerState(broker.fenced, broker.registration.epoch)
    return states
