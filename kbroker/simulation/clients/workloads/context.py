"""The context that all workloads of a run share, and the signal that stops them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from kbroker.client.requests import Address
from kbroker.simulation.checker.history import History
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.connection import draw_older_transactional_versions, draw_older_versions
from kbroker.simulation.runtime.host_loop import HostLoop

# The share of clients that use older API versions.
OLD_VERSIONS = 0.5
# The timeout of a client's requests, in seconds.
TIMEOUT_S = 5.0
# Factors for a timeout, one drawn for each client: most clients retry before the broker has finished.
TIMEOUT_FACTORS = (0.03, 0.2, 1.0)


@dataclass(slots=True)
class StopSignal:
    """Asks workloads to stop.

    While `draining`, members do not restart, and transactional programs neither abort nor crash on purpose.
    """

    requested: bool = False
    draining: bool = False

    def request(self) -> None:
        self.requested = True


@dataclass(slots=True)
class WorkloadContext:
    """What all workloads of a run share. `rack`: that of the client's host."""

    loop: HostLoop
    history: History
    bootstrap: Sequence[Address]
    stop: StopSignal = field(default_factory=StopSignal)
    rack: str = ""

    def cluster(
        self,
        name: str,
        random: Random,
        *,
        static_members: bool = False,
        patient: bool = False,
        in_transactions: bool = False,
        consumer_protocol: bool = False,
    ) -> Cluster:
        """Return a cluster client with drawn versions and, unless `patient`, a drawn request timeout.

        A client with a short timeout retries while the broker still processes its request.
        """
        caps = None
        if random.random() < OLD_VERSIONS and not consumer_protocol:
            caps = (
                draw_older_transactional_versions(random)
                if in_transactions
                else draw_older_versions(random, static_members=static_members)
            )
        timeout_s = TIMEOUT_S * (1.0 if patient else random.choice(TIMEOUT_FACTORS))
        return Cluster(self.loop, self.bootstrap, random, name, caps=caps, timeout_s=timeout_s)
