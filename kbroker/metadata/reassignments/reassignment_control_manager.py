"""Reassignments of partitions (KIP-455) and plans of many of them, written to the coordination service.

A reassignment is part of the state of its partition, and the ISR change that fulfils it also completes it. So it needs
no task, which another controller would have to continue. The decisions are in kbroker/metadata/replication.

The elected controller runs a plan in steps (plan_decisions.py). A step writes what `next_step` returns. The next change
of the image starts the next step. A step depends only on the plan and the partitions, so another controller continues
with it. Every write is fenced by the controller epoch.
"""

from __future__ import annotations

from asyncio import sleep
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.coordination.interface import CoordinationError, Create, Delete, NoNode, Op, Set
from kbroker.metadata.control_manager import ControllerContext, ControlManager, PartitionOutcome
from kbroker.metadata.image import BrokerHistory, KnownBroker, MetadataDelta, PartitionRegistration
from kbroker.metadata.reassignments.healing_states import histories_at_cancellation, histories_at_end
from kbroker.metadata.reassignments.plan_decisions import (
    MoveStatus,
    RequestedPlan,
    all_statuses,
    check_plan,
    check_throttle,
    next_step,
    with_throttle,
    without_throttle,
)
from kbroker.metadata.reassignments.stored_plan import (
    NO_THROTTLE,
    PlanOrigin,
    PlanState,
    StoredMove,
    StoredPlan,
    encode_header,
    encode_moves,
    moves_paths,
)
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.partition_requests import (
    RequestedReassignment,
    alter_reassignment,
    balance_leader,
    missing_partition,
)
from kbroker.metadata.store import znodes
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.metadata.store.znodes import overrides_op
from kbroker.metadata.topics.topic_requests import check_not_view
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced, yield_if_due
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Task

log = EventLogger("kbroker.metadata")


class ReassignmentControlManager(ControlManager):
    async def alter_reassignments(
        self, requested: Sequence[RequestedReassignment], may_change_factor: bool = True
    ) -> list[PartitionOutcome]:
        """Begin, replace or cancel reassignments (KIP-455). Returns the outcome of each, in order.

        Without `may_change_factor` a target must have as many replicas as the partition has.

        Those without an error are written in one multi, if it is not too large (some thousand partitions). If it is, a
        failure may leave only some partitions written, each as a whole, and the client can repeat the request. Raises
        KafkaError if not all are known to be written.
        """
        async with self._lock:
            await self._writer.prepare()
            draft = ChunkDraft(self._loader.chunks)
            outcomes = []
            for topic, index, target in paced(requested):
                error = None
                try:
                    self.alter(draft, topic, index, target, may_change_factor)
                except KafkaError as refusal:
                    error = refusal
                outcomes.append(PartitionOutcome(topic, index, error))
            await self._writer.commit_all(draft.ops())
        for (topic, index, target), outcome in zip(requested, outcomes, strict=True):
            if outcome.error is None:
                partition = f"{topic}-{index}"
                if target is None:
                    log.info("reassignment cancelled", partition=partition)
                else:
                    log.info("reassignment requested", partition=partition, replicas=list(target))
                yield_if_due()
        return outcomes

    async def check_current(self) -> None:
        """Wait until the image has all changes of this controller and of former ones. Raises KafkaError.

        A controller that has just been elected would otherwise miss a reassignment that a client has begun.
        """
        async with self._lock:
            await self._writer.prepare()

    def alter(
        self, draft: ChunkDraft, topic: str, index: int, target: Sequence[int] | None, may_change_factor: bool = True
    ) -> None:
        """Add the change of one partition to the draft. Raises KafkaError."""
        topics, known = self._image.topics, self._loader.registrations
        check_not_view(topics.get(topic), "move the partitions of")
        found = draft.find(topics[topic].topic_id, index) if topic in topics else None
        if found is None:
            raise missing_partition(topics, topic, index)
        number, partition = found
        topic_id = topics[topic].topic_id
        altered = alter_reassignment(
            f"{topic}:{index}",
            partition,
            target,
            {broker_id: broker.registration.rack for broker_id, broker in known.items()},
            self._is_acceptable(),
            self._rules(topic_id),
            may_change_factor=may_change_factor,
        )
        draft.replace(number, topic_id, index, altered)

    def elect_preferred(self, draft: ChunkDraft, topic: str, index: int) -> None:
        """Add the election of a partition's preferred leader to the draft, if it can lead. Raises KafkaError."""
        topics = self._image.topics
        topic_id = topics[topic].topic_id
        found = draft.find(topic_id, index)
        if found is None:
            raise missing_partition(topics, topic, index)
        number, partition = found
        elected = balance_leader(partition, self._is_acceptable(), self._rules(topic_id))
        draft.replace(number, topic_id, index, elected)


# The shortest interval between two steps, so that one step handles many changes of the image: a fixed part, and one for
# each move of the plan, which takes about 6 us of a step. The backoff while the coordination service is unavailable.
STEP_INTERVAL_S = 0.1
STEP_INTERVAL_PER_MOVE_S = 0.0001
RETRY_BACKOFF_S = 1.0


class PlanProgress(NamedTuple):
    """A plan, and the state of each of its moves."""

    plan: StoredPlan
    moves: list[MoveStatus]


class ReassignmentPlanManager(ControlManager):
    def __init__(self, context: ControllerContext, reassignments: ReassignmentControlManager) -> None:
        super().__init__(context)
        self._reassignments = reassignments
        # The brokers that have been away so long that self-healing rebuilds their replicas elsewhere.
        self._away: frozenset[int] = frozenset()
        self._is_step_due = False
        self._running: Task[None] | None = None
        self._loader.roles_listeners.append(self.continue_plan)

    # Requests.

    async def create_plan(
        self,
        requested: RequestedPlan,
        origin: PlanOrigin = PlanOrigin.REQUEST,
        brokers: Sequence[int] = (),
        is_due: Callable[[], bool] = lambda: True,
    ) -> int:
        """Store a plan and begin to run it. Returns its id. Raises KafkaError.

        `origin`, `brokers`, `is_due`: for a plan of the controller, which is refused unless `is_due` returns true.
        """
        async with self._lock:
            await self._writer.prepare()
            if not is_due():
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The brokers have changed since the plan was made.")
            last = self._loader.reassignment_plan.plan
            if last is not None and last.is_active:
                raise KafkaError(
                    ErrorCode.REASSIGNMENT_IN_PROGRESS,
                    f"Plan {last.plan_id} is {last.state}: wait for its end, or cancel it.",
                )
            racks = {broker_id: known.registration.rack for broker_id, known in self._loader.registrations.items()}
            moves = check_plan(requested, self._image.topics, racks)
            plan = StoredPlan(
                1 if last is None else last.plan_id + 1, requested.description, PlanState.RUNNING, requested.throttle,
                requested.max_concurrent_moves, self._clock.now_ms(), tuple(moves), origin=origin,
                brokers=tuple(brokers),
            )  # fmt: skip
            if plan.throttle != NO_THROTTLE:
                check_throttle(plan, self._image)
            await self._write_new(plan, last)
        log.info("plan created", plan=plan.plan_id, moves=len(plan.moves), description=plan.description)
        self._start_steps()
        return plan.plan_id

    async def _write_new(self, plan: StoredPlan, last: StoredPlan | None) -> None:
        """Write the nodes of the moves, then the plan, and remove the nodes of the last plan. Raises KafkaError.

        After a failure in between, nodes of moves remain without a plan until the next plan is written. Nothing reads
        them.
        """
        create: list[Op] = []
        try:
            stored = {f"{znodes.REASSIGNMENT_PLAN}/{name}" for name in await self._stored_nodes()}
        except NoNode:
            stored, create = set(), [Create(znodes.REASSIGNMENT_PLAN, b"")]
        of_last_plan = stored.intersection([] if last is None else moves_paths(last))
        await self._writer.commit_all(
            [
                *create,
                *(Delete(path) for path in sorted(stored - of_last_plan)),
                *(Create(path, data) for path, data in encode_moves(plan.plan_id, plan.moves)),
                _plan_op(plan),
                *(Delete(path) for path in sorted(of_last_plan)),
            ]
        )

    async def _stored_nodes(self) -> list[str]:
        """Return the paths of the stored nodes of moves. Raises NoNode, KafkaError."""
        try:
            return await self._writer.coordination.children(znodes.REASSIGNMENT_PLAN)
        except NoNode:
            raise
        except CoordinationError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Coordination failed: {error}") from error

    async def cancel_plan(self, plan_id: int) -> None:
        """Begin to move everything back. A plan of the controller instead drops the moves that are not done.

        Raises KafkaError if this plan is not running.
        """
        async with self._lock:
            await self._writer.prepare()
            plan = self._loader.reassignment_plan.plan
            if plan is None or plan.plan_id != plan_id or not plan.is_active:
                raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"Plan {plan_id} is not running.")
            if plan.state is PlanState.RUNNING:
                known = self._loader.registrations
                histories = _history_ops(histories_at_cancellation(plan, known), known)
                await self._writer.commit([_plan_op(plan._replace(state=PlanState.CANCELLING)), *histories])
        log.info("plan is being cancelled", plan=plan_id)
        self._start_steps()

    async def describe_plan(self) -> PlanProgress | None:
        """Return the running plan or the last one; None if there has been none. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            plan = self._loader.reassignment_plan.plan
            if plan is None:
                return None
            return PlanProgress(plan, all_statuses(plan, self._find_partition, self._loader.registrations))

    # Steps.

    def continue_plan(self, delta: MetadataDelta | None = None, away: frozenset[int] | None = None) -> None:
        """Continue the plan if one is running: this broker is the controller and its image is up to date.

        `away`: the brokers whose replicas self-healing rebuilds elsewhere from now on; None if they are the same.
        """
        self._away = self._away if away is None else away
        if self._writer.is_elected and self._loader.reassignment_plan.is_active:
            self._start_steps()

    def _start_steps(self) -> None:
        self._is_step_due = True
        if self._running is None:
            self._running = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._is_step_due and self._writer.is_elected:
                self._is_step_due = False
                try:
                    await self._environment.turns.run(self._step())
                except KafkaError as error:
                    if self._writer.is_elected:
                        log.warning("the plan waits", reason=error)
                        self._is_step_due = True
                        await sleep(RETRY_BACKOFF_S)
                except Exception as error:
                    # Retried, since only the controller continues the plan.
                    log.failure("the plan waits", error)
                    self._is_step_due = True
                    await sleep(RETRY_BACKOFF_S)
                await sleep(self._interval_s())
        finally:
            self._running = None

    def _interval_s(self) -> float:
        plan = self._loader.reassignment_plan.plan
        return STEP_INTERVAL_S + (0 if plan is None else len(plan.moves) * STEP_INTERVAL_PER_MOVE_S)

    async def _step(self) -> None:
        """Run one step if there is something to do. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            plan = self._loader.reassignment_plan.plan
            if plan is None or not plan.is_active:
                return
            # A plan that was cancelled before its throttle was set has moved nothing.
            if plan.throttle != NO_THROTTLE and not plan.is_throttled and plan.state is PlanState.RUNNING:
                throttled = plan._replace(is_throttled=True)
                await self._writer.commit_all(
                    [*self._config_ops(with_throttle(plan, self._image)), _plan_op(throttled)]
                )
                plan = throttled
            await self._move(plan)

    async def _move(self, plan: StoredPlan) -> None:
        known = self._loader.registrations
        alive = acceptable_leaders(known)
        # The lock is held, so the moves do not change between the turns.
        step = next_step(plan, self._find_partition, alive, known, self._away)
        draft = ChunkDraft(self._loader.chunks)
        for move in step.begin:
            self._reassignments.alter(draft, move.topic, move.partition, plan.direction(move)[1])
        for move in step.dropped:
            # The former order has the preferred leader first. An unregistered broker is no valid target.
            former = move.original if known.keys() >= set(move.original) else None
            self._reassignments.alter(draft, move.topic, move.partition, former)
        for move in step.elections:
            self._reassignments.elect_preferred(draft, move.topic, move.partition)
        ops = draft.ops()
        at_end: list[Op] = []
        if step.is_finished:
            if plan.throttle != NO_THROTTLE:
                ops += self._config_ops(without_throttle(plan, self._image))
            state = PlanState.COMPLETE if plan.state is PlanState.RUNNING else PlanState.CANCELLED
            # These are written last, in one change: before it, the next controller repeats the step.
            ended = plan._replace(state=state, ended_ms=self._clock.now_ms(), skipped=step.skipped)
            at_end = [_plan_op(ended), *_history_ops(self._histories_at_end(ended), known)]
        await self._writer.commit_all(ops)
        if at_end:
            await self._writer.commit(at_end)
        if step.begin:
            log.info("plan moves partitions", plan=plan.plan_id, partitions=len(step.begin))
        if step.dropped:
            log.info("plan drops moves", plan=plan.plan_id, partitions=len(step.dropped))
        if step.is_finished:
            log.info("plan has ended", plan=plan.plan_id, state=state, skipped=sum(map(len, step.skipped.values())))

    def _histories_at_end(self, plan: StoredPlan) -> dict[int, BrokerHistory]:
        skipped = {index for indexes in plan.skipped.values() for index in indexes}
        done = [move for index, move in enumerate(plan.moves) if index not in skipped]
        replicas = Counter(broker for _, partition in self._image.partitions() for broker in partition.replicas)
        return histories_at_end(plan, done, self._loader.registrations, replicas)

    def _find_partition(self, move: StoredMove) -> PartitionRegistration | None:
        topic = self._image.topics_by_id.get(move.topic_id)
        if topic is None or move.partition >= len(topic.partitions):
            return None
        return topic.partitions[move.partition]

    def _config_ops(self, altered: Mapping[ConfigResource, dict[str, str]]) -> list[Op]:
        return [
            overrides_op(resource, self._image.overrides(*resource), overrides)
            for resource, overrides in altered.items()
            if resource.type != ConfigResourceType.TOPIC or resource.name in self._image.topics
        ]


def _history_ops(histories: Mapping[int, BrokerHistory], known: Mapping[int, KnownBroker]) -> list[Op]:
    return [
        Set(znodes.registration_path(broker), znodes.encode_registration(known[broker]._replace(history=history)))
        for broker, history in histories.items()
    ]


def _plan_op(plan: StoredPlan) -> Op:
    return Set(znodes.REASSIGNMENT_PLAN, encode_header(plan))
