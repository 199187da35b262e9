"""SelfHealingManager: the elected controller makes plans that rebuild the replicas of brokers that stay away.

healing_states.py decides which brokers are due, placement/drain.py which replicas move. The plans run as those on
request do (reassignment_control_manager.py): they can be listed, throttled and cancelled, and the next controller
continues them.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.interface import Set
from kbroker.metadata.control_manager import ControllerContext, ControlManager
from kbroker.metadata.image import BrokerHistory
from kbroker.metadata.reassignments.healing_states import (
    BrokerDisk,
    HealedBroker,
    HealingInputs,
    HealingState,
    ObservedBrokers,
    Obstacle,
    Obstacles,
    broker_states,
    healed_brokers,
    healing_layout,
    long_away,
    obstacles_of,
)
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterLayout
from kbroker.metadata.reassignments.placement.drain import Rebuild, rebuild, take_share
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.plan_decisions import RequestedPlan
from kbroker.metadata.reassignments.reassignment_control_manager import ReassignmentPlanManager
from kbroker.metadata.reassignments.stored_plan import NO_THROTTLE, PlanOrigin
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.store import znodes
from kbroker.runtime.event_log import EventLogger

log = EventLogger("kbroker.metadata")

AFTER_MS = "kbroker.replica.rebuild.after.ms"
THROTTLED_RATE = "kbroker.replica.rebuild.throttled.rate"
# The interval of checks is this fraction of the time after which a broker is rebuilt, within the bounds below.
CHECKS = 10
MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 10_000
# A plan that was impossible or refused is tried again when the metadata changes, when another broker is due, or after
# this time: there may be disk space by then.
RETRY_MS = 60_000
# Plans are small, so that plans on request can begin between them, and the throttles fit into the configs of a topic.
MAX_MOVES, CONCURRENT_MOVES = 1000, 10

# Returns the reports of the brokers that respond, by broker id.
ReadDisks = Callable[[Collection[int]], Awaitable[Mapping[int, BrokerDisk]]]


async def _no_disks(brokers: Collection[int]) -> Mapping[int, BrokerDisk]:
    """Return no reports: the sizes of all replicas are unknown."""
    return {broker: BrokerDisk({}) for broker in brokers}


class SelfHealingManager(ControlManager):
    def __init__(self, context: ControllerContext, plans: ReassignmentPlanManager) -> None:
        super().__init__(context)
        self._plans = plans
        self.read_disks: ReadDisks = _no_disks
        self._observed = ObservedBrokers()
        # The number of replicas by broker, and the version of the image that has them.
        self._replicas: tuple[int, Counter[int]] = (-1, Counter())
        # The last attempt: its obstacles, the version of the image with the brokers that were due, and the monotonic
        # time.
        self._obstacles = Obstacles()
        self._tried: tuple[int, frozenset[int]] | None = None
        self._tried_ms = 0
        # Why the last check failed. It is logged once: an outage of the coordination service may last hours.
        self._failure = ""

    @property
    def after_ms(self) -> int:
        """The time in ms after which the replicas of an absent broker are rebuilt; 0 or less: never."""
        return self._value(AFTER_MS)

    @property
    def interval_ms(self) -> int:
        return max(MIN_INTERVAL_MS, min(self.after_ms // CHECKS, MAX_INTERVAL_MS))

    @property
    def is_needed(self) -> bool:
        return self._writer.is_elected and self.after_ms > 0 and len(self._loader.registrations) > 1

    @property
    def replicas_not_rebuilt(self) -> int:
        """How many replicas the last attempt could not rebuild."""
        return self._obstacles.replicas if self.is_needed else 0

    def _value(self, name: str) -> int:
        # The image may be newer than this broker's configuration.
        override = self._image.overrides(ConfigResourceType.BROKER, "").get(name)
        return int(str(self._config().get(name) if override is None else override))

    async def heal(self) -> None:
        """Begin a plan if one is due. On failure the next check tries again."""
        try:
            await self._heal()
        except KafkaError as error:
            if self._writer.is_elected and str(error) != self._failure:
                log.warning("self-healing waits", reason=error)
            self._failure = str(error)
        else:
            self._failure = ""

    async def describe(self) -> list[HealedBroker]:
        """Return the brokers that are away with replicas, and those that are to get some back. Raises KafkaError."""
        if self.after_ms <= 0:
            return []
        async with self._lock:
            await self._writer.prepare()
            return self._obstacles.applied_to(healed_brokers(self._inputs()))

    async def _heal(self) -> None:
        async with self._lock:
            await self._writer.prepare()
            inputs = self._inputs()
            healed = healed_brokers(inputs)
            known, version = dict(self._loader.registrations), self._image.version
        self._plans.continue_plan(away=long_away(inputs))
        due = [broker for broker in healed if broker.state is HealingState.DUE]
        if not due:
            self._note(Obstacles.waiting(healed))
            return
        attempt = version, frozenset(broker.broker_id for broker in due)
        if attempt == self._tried and self._clock.mono_ms() < self._tried_ms + RETRY_MS:
            return
        self._tried, self._tried_ms = attempt, self._clock.mono_ms()
        layout = healing_layout(self._image.topics, known, await self.read_disks(acceptable_leaders(known)))
        away = frozenset(broker.broker_id for broker in due if broker.is_away)
        result: Rebuild = await self._environment.offload(rebuild, layout, away, MAX_MOVES)
        refused = await self._begin(result, due, layout)
        # Logs only the obstacles that the last attempt did not find.
        self._note(obstacles_of(result, away).with_refusal(refused))

    async def _begin(self, result: Rebuild, due: Collection[HealedBroker], layout: ClusterLayout) -> Obstacle | None:
        """Begin a plan that rebuilds replicas, or else gives some back. Returns why it was refused, None if not."""
        if result.plan.moves:
            moved = {broker for move in result.plan.moves for broker in move.removed}
            return await self._create(PlanOrigin.REBUILD, sorted(moved), result.plan.moves, layout)
        for broker in due:
            if broker.is_away:
                continue
            share = await self._environment.offload(
                take_share, layout, broker.broker_id, min(broker.replicas, MAX_MOVES)
            )
            if share.moves:
                return await self._create(PlanOrigin.RETURN, [broker.broker_id], share.moves, layout)
            if layout.brokers[broker.broker_id].accepts_replicas:
                await self._forget_rebuilt(broker.broker_id)
        return None

    async def _forget_rebuilt(self, broker_id: int) -> None:
        """Record that a broker has its share of replicas, so none are given back to it any more."""
        async with self._lock:
            await self._writer.prepare()
            known = self._loader.registrations.get(broker_id)
            if known is not None and not known.fenced:
                after = known._replace(history=known.history._replace(rebuilt=0))
                await self._writer.commit([Set(znodes.registration_path(broker_id), znodes.encode_registration(after))])

    async def _create(
        self, origin: PlanOrigin, brokers: list[int], moves: Collection[PartitionMove], layout: ClusterLayout
    ) -> Obstacle | None:
        """Create a plan, most endangered partitions first. Returns why it was refused, None if it was accepted."""
        in_sync = {(part.topic, part.partition): part.in_sync for part in layout.partitions}
        ordered = sorted(moves, key=lambda move: in_sync[move.topic, move.partition])
        rate = self._value(THROTTLED_RATE)
        requested = RequestedPlan(
            description(origin, brokers), rate if rate > 0 else NO_THROTTLE, CONCURRENT_MOVES,
            ordered,
            allow_fewer_racks=True,  # a replica there protects better than none
        )  # fmt: skip
        try:
            await self._plans.create_plan(requested, origin, brokers, lambda: self._are_due(brokers))
        except KafkaError as error:
            not_rebuilt = len(moves) if origin is PlanOrigin.REBUILD else 0
            return Obstacle(tuple(brokers), str(error.message or error.code.name), not_rebuilt)
        self._tried = None
        return None

    def _are_due(self, brokers: Collection[int]) -> bool:
        """Return whether a plan about these brokers may begin. The lock is held."""
        due = {broker.broker_id for broker in healed_brokers(self._inputs()) if broker.state is HealingState.DUE}
        return due.issuperset(brokers)

    def _note(self, obstacles: Obstacles) -> None:
        """Store what keeps brokers from being rebuilt. Each obstacle is logged once."""
        for obstacle in obstacles.added_since(self._obstacles):
            log.warning(
                "replicas are not rebuilt",
                brokers=list(obstacle.brokers),
                replicas=obstacle.replicas,
                reason=obstacle.reason,
            )
        self._obstacles = obstacles

    def _inputs(self) -> HealingInputs:
        """Return the input of `healed_brokers`. The lock is held."""
        known, version = self._loader.registrations, self._image.version
        if self._replicas[0] != version:
            replicas = Counter(broker for _, partition in self._image.partitions() for broker in partition.replicas)
            self._replicas = version, replicas
        replicas = self._replicas[1]
        states, now_ms, mono_ms = broker_states(known, replicas), self._clock.now_ms(), self._clock.mono_ms()
        self._observed.update(self._writer.epoch, states, mono_ms)
        remaining_ms = {
            broker_id: self._observed.remaining_ms(
                broker_id,
                known[broker_id].history if broker_id in known else BrokerHistory(),
                self.after_ms,
                now_ms=now_ms,
                mono_ms=mono_ms,
            )
            for broker_id in states
        }
        return HealingInputs(known, replicas, remaining_ms, self._loader.reassignment_plan.plan)


def description(origin: PlanOrigin, brokers: Collection[int]) -> str:
    """Return the description of a plan of the controller."""
    ids = ", ".join(map(str, brokers))
    word = "broker" if len(brokers) == 1 else "brokers"
    return f"rebuild {word} {ids}" if origin is PlanOrigin.REBUILD else f"give replicas back to {word} {ids}"
