"""Brokers whose clocks are hours apart all the time: replication, sessions, groups and transactions work as always."""

from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.simulation.runtime.machine import Machine
from kbroker.simulation.scenarios.run import simulate
from kbroker.simulation.scenarios.simulation import Simulation

HOUR_MS = 3_600_000
# A broker whose clock is hours behind refuses timestamps of now by default, as Kafka does.
ANY_TIMESTAMP = {"log.message.timestamp.after.max.ms": str(2**63 - 1)}


@pytest.mark.parametrize(("seed", "hours"), [(3, 5), (4, -5)])
def test_a_cluster_whose_clocks_are_hours_apart(monkeypatch: pytest.MonkeyPatch, seed: int, hours: int) -> None:
    real: Any = Simulation._machine

    def machine(simulation: Simulation, number: int, brokers: int, configs: Mapping[str, str]) -> Machine:
        made: Machine = real(simulation, number, brokers, {**configs, **ANY_TIMESTAMP})
        if number == 1:
            made.usual_skew_ms = made.clock.skew_ms = hours * HOUR_MS
        return made

    monkeypatch.setattr(Simulation, "_machine", machine)
    result = simulate(seed, "cluster")
    assert result.report() == ""
    assert len(result.history.operations) > 50
