"""Committed offsets without a membership, when the coordinator moves."""

from random import Random

import pytest

from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from kbroker.simulation.checker.history import History
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.group_offsets import RefusedError, StandaloneGroupOffsets
from kbroker.simulation.runtime.machine import PORT
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

P = ("t", 0)


class OffsetsProgram:
    """A program on a host of its own, which reads and commits the offset of one partition."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._host = cluster.host("client")
        self.history = History(lambda: cluster.loop.elapsed_ns)
        bootstrap = [(f"b{node_id}", PORT) for node_id in cluster.machines]
        self.cluster = Cluster(self._host, bootstrap, Random(1), "client")
        self._offsets = StandaloneGroupOffsets(self.cluster, self.history, "client", "g")

    async def committed(self) -> int:
        """Return the committed offset. Raises OSError, RefusedError."""

        async def fetch() -> int:
            await self.cluster.refresh_metadata([P[0]])
            return (await self._offsets.committed([P]))[P][0]

        return await self._host.run(fetch())

    async def commit(self, offset: int) -> bool:
        """Make one attempt to commit. Returns whether it has succeeded. Raises OSError."""

        async def commit() -> bool:
            await self.cluster.refresh_metadata([P[0]])
            return await self._offsets.commit({P: (offset, -1)})

        return await self._host.run(commit())


async def until_committed(program: OffsetsProgram, s: SimulatedCluster, offset: int) -> None:
    """Commit until an attempt succeeds, at most for 60 s."""
    deadline = s.loop.time() + 60
    while not await program.commit(offset):
        assert s.loop.time() < deadline, "no attempt to commit has succeeded"
        await program.cluster.backoff()


async def until_read(program: OffsetsProgram, s: SimulatedCluster) -> int:
    """Return the committed offset. The read is attempted for at most 60 s."""
    deadline = s.loop.time() + 60
    while True:
        try:
            return await program.committed()
        except (OSError, RefusedError):
            assert s.loop.time() < deadline, "no attempt to read the offset has succeeded"
            await program.cluster.backoff()


async def move_coordinator(s: SimulatedCluster) -> None:
    """Move the group to another broker. The former coordinator stays up, and keeps the client's connection."""
    former = s.registration(1, GROUP_METADATA_TOPIC).leader
    others = [node_id for node_id in s.machines if node_id != former]
    await s.reassign(others, GROUP_METADATA_TOPIC)
    await s.until(lambda: s.registration(former, GROUP_METADATA_TOPIC).leader in others)


@simulated(SimulatedCluster, range(2))
async def test_fetch_finds_the_coordinator_that_has_moved(s: SimulatedCluster) -> None:
    await s.create([1, 2, 3])
    program = OffsetsProgram(s)
    await until_committed(program, s, 5)
    await move_coordinator(s)
    with pytest.raises(RefusedError, match="NOT_COORDINATOR"):
        await program.committed()
    assert await until_read(program, s) == 5
    program.cluster.close()


@simulated(SimulatedCluster, range(2))
async def test_commit_finds_the_coordinator_that_has_moved(s: SimulatedCluster) -> None:
    await s.create([1, 2, 3])
    program = OffsetsProgram(s)
    await until_committed(program, s, 5)
    await move_coordinator(s)
    assert not await program.commit(7)
    await until_committed(program, s, 7)
    assert await until_read(program, s) == 7
    program.cluster.close()
