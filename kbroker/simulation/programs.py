"""The programs of a run: who sets up, who sends and reads while things go wrong, who reads all of it in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.bootstrap import Cluster
from kbroker.simulation.clients.group_offsets import Bookmarks
from kbroker.simulation.clients.offsets import RefusedError
from kbroker.simulation.clients.reading import consume_assigned, consume_group, final_reads
from kbroker.simulation.clients.values import Values
from kbroker.simulation.clients.workload import Setting, Stop, produce, trim
from kbroker.simulation.history import Join, Outcome, Place
from kbroker.simulation.host import HostLoop
from kbroker.simulation.logfiles import GROUPS_TOPIC

if TYPE_CHECKING:
    from kbroker.simulation.plan import Plan
    from kbroker.simulation.stage import Stage

GROUP = "group"
# Until they are told to stop.
ENDLESS = 1 << 60
LOOKED_AT_EVERY_S = 0.2


class Programs:
    def __init__(self, stage: Stage, plan: Plan) -> None:
        self._stage = stage
        self._plan = plan
        self._stop = Stop()
        self._values = Values(1)
        self._running: list[asyncio.Future[Any]] = []
        # The members of the group by name, each with what ends it.
        self._members: dict[str, tuple[Stop, asyncio.Future[Any]]] = {}

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
            if self._plan.groups_topic:
                await admin.alter_configs(GROUPS_TOPIC, self._plan.groups_topic)
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
            # Some keep their offsets in a group of their own, without being members of it.
            group = f"{name}-offsets" if plan.members and random.random() < 0.5 else None
            self._run(host, consume_assigned(self._setting(host), name, random, self.places, ENDLESS, group=group))
        for number in range(plan.members):
            name = f"member{number}"
            host, random = self._stage.client(name), self._stage.random_for(name)
            stop = Stop()
            setting = Setting(host, self._stage.history, self._stage.bootstrap, stop)
            work = consume_group(setting, name, random, GROUP, list(plan.topics), ENDLESS)
            self._members[name] = stop, host.run(work)
        for number in range(plan.trimmers):
            name = f"trimmer{number}"
            host, random = self._stage.client(name), self._stage.random_for(name)
            self._run(host, trim(self._setting(host), name, random, self.places))

    async def finish(self) -> None:
        """Tell them to stop, and wait until each has; the group when it has shown that it gets over a loss."""
        self._stop.ask()
        await asyncio.gather(*self._running)
        await self._outlive_a_member()
        for stop, _ in self._members.values():
            stop.ask()
        await asyncio.gather(*(running for _, running in self._members.values()))

    async def _outlive_a_member(self) -> None:
        """One member dies without a word, and the others have all partitions among them in the end."""
        for stop, _ in self._members.values():
            stop.settled = True
        left = list(self._members)
        if len(left) > 1:
            stop, running = self._members[left.pop()]
            stop.ask()
            await running
        while left and not self._have_everything(left):
            await asyncio.sleep(LOOKED_AT_EVERY_S)

    def _have_everything(self, names: list[str]) -> bool:
        """Whether these members, in the generation that each has joined last, have all partitions."""
        last: dict[str, Join] = {}
        for operation in reversed(self._stage.history.operations):
            if len(last) == len(names):
                break
            if isinstance(operation.action, Join) and operation.process in names:
                if operation.outcome is not Outcome.OK and operation.process not in last:
                    return False
                last.setdefault(operation.process, operation.action)
        generations = {join.generation for join in last.values()}
        places = {place for join in last.values() for place in join.partitions}
        return len(last) == len(names) and len(generations) == 1 and places.issuperset(self.places)

    async def read_all(self) -> None:
        """Every record, and what the group has committed."""
        host = self._stage.client("final")
        if self._plan.members:
            await host.run(self._read_commits(host))
        late = await host.run(final_reads(self._setting(host), self._stage.random_for("final"), self.places))
        assert not late, f"not read to the end: {late}"

    async def _read_commits(self, host: HostLoop) -> None:
        setting = self._setting(host)
        cluster = Cluster(host, setting.bootstrap, self._stage.random_for("final commits"), "final")
        bookmarks = Bookmarks(cluster, setting.history, "final", GROUP)
        while True:
            try:
                await cluster.refresh(list(self._plan.topics))
                await bookmarks.read(self.places)
                break
            except (OSError, RefusedError):
                await cluster.rest()
        cluster.close()

    def _run(self, host: HostLoop, program: Coroutine[Any, Any, None]) -> None:
        self._running.append(host.run(program))

    def _setting(self, host: HostLoop) -> Setting:
        return Setting(host, self._stage.history, self._stage.bootstrap, self._stop)
