"""The programs of a run: who sets up, who sends and reads while things go wrong, who reads all of it in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.bootstrap import Cluster
from kbroker.simulation.clients.values import Values
from kbroker.simulation.clients.workload import (
    Setting,
    Stop,
    consume_assigned,
    consume_group,
    final_reads,
    produce,
)
from kbroker.simulation.history import Place
from kbroker.simulation.host import HostLoop
from kbroker.simulation.logfiles import GROUPS_TOPIC

if TYPE_CHECKING:
    from kbroker.simulation.plan import Plan
    from kbroker.simulation.stage import Stage

GROUP = "group"
# Until they are told to stop.
ENDLESS = 1 << 60


class Programs:
    def __init__(self, stage: Stage, plan: Plan) -> None:
        self._stage = stage
        self._plan = plan
        self._stop = Stop()
        self._values = Values(1)
        self._running: list[asyncio.Future[Any]] = []

    @property
    def places(self) -> list[Place]:
        return [(name, index) for name, topic in self._plan.topics.items() for index in range(topic.partitions)]

    async def set_up(self) -> None:
        """Make the topics, and that of the groups as durable as they are."""
        host = self._stage.client("admin")
        await host.run(self._set_up(host))

    async def _set_up(self, host: HostLoop) -> None:
        setting = self._setting(host)
        cluster = Cluster(host, setting.bootstrap, self._stage.random_for("admin"), "admin")
        admin = Admin(cluster, setting.history, "admin")
        for name, topic in self._plan.topics.items():
            await admin.create_topic(name, topic.partitions, topic.configs)
        if self._plan.members:
            # Whoever looks for the coordinator makes the topic.
            while True:
                try:
                    await cluster.coordinator(GROUP)
                    break
                except OSError:
                    await cluster.rest()
            if self._plan.durable:
                await admin.alter_configs(GROUPS_TOPIC, {"flush.before.ack": "true"})
        admin.close()

    def start(self) -> None:
        plan = self._plan
        for number in range(plan.producers):
            name = f"producer{number}"
            host, random = self._stage.client(name), self._stage.random_for(name)
            idempotent = random.random() < 0.7
            acks = -1 if idempotent else random.choice((-1, 1, 0))
            self._run(
                host,
                produce(
                    self._setting(host),
                    name,
                    random,
                    self._values,
                    self.places,
                    ENDLESS,
                    idempotent=idempotent,
                    acks=acks,
                    pause_s=plan.pause_between_sends_s,
                ),
            )
        for number in range(plan.readers):
            name = f"reader{number}"
            host, random = self._stage.client(name), self._stage.random_for(name)
            self._run(host, consume_assigned(self._setting(host), name, random, self.places, ENDLESS))
        for number in range(plan.members):
            name = f"member{number}"
            host, random = self._stage.client(name), self._stage.random_for(name)
            self._run(host, consume_group(self._setting(host), name, random, GROUP, list(plan.topics), ENDLESS))

    async def finish(self) -> None:
        """Tell them to stop, and wait until each has."""
        self._stop.ask()
        await asyncio.gather(*self._running)

    async def read_all(self) -> None:
        host = self._stage.client("final")
        late = await host.run(final_reads(self._setting(host), self._stage.random_for("final"), self.places))
        assert not late, f"not read to the end: {late}"

    def _run(self, host: HostLoop, program: Coroutine[Any, Any, None]) -> None:
        self._running.append(host.run(program))

    def _setting(self, host: HostLoop) -> Setting:
        return Setting(host, self._stage.history, self._stage.bootstrap, self._stop)
