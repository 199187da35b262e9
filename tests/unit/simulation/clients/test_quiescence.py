"""Waiting for open transactions in a cluster, in which each broker lists only those that it coordinates."""

import asyncio
from random import Random

from kbroker.simulation.checker.history import History
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.transactional import TransactionalProducer
from kbroker.simulation.clients.workloads.quiescence import wait_until_no_open_transaction
from kbroker.simulation.runtime.machine import PORT
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated


@simulated(SimulatedCluster, range(3))
async def test_open_transactions_of_all_coordinators_are_awaited(s: SimulatedCluster) -> None:
    await s.create([1, 2, 3])
    host = s.host("client")
    history = History(lambda: s.loop.elapsed_ns)
    bootstrap = [(f"b{node_id}", PORT) for node_id in s.machines]

    async def run() -> None:
        clusters = [Cluster(host, bootstrap, Random(f"{s.seed}/{name}"), name) for name in ("producer", "settling")]
        producer = TransactionalProducer(clusters[0], history, "producer", Random(s.seed), "id")
        await producer.init()
        producer.begin(0)
        await producer.write(("t", 0), [1])
        # Without partitions, only the coordinators can tell.
        waiting = host.create_task(wait_until_no_open_transaction(clusters[1], []))
        await asyncio.sleep(5)
        assert not waiting.done()
        await producer.commit()
        await waiting
        for cluster in clusters:
            cluster.close()

    await host.run(run())
