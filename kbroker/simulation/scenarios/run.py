"""One run: simulates a seed of a scenario and checks its history.

The broker starts, topics are created, programs send and read while faults happen for some time. Then the faults end,
and new consumers must read all acknowledged records within a bounded time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from time import process_time
from typing import NamedTuple

from kbroker.simulation.checker import Anomaly, check, render
from kbroker.simulation.checker.history import History, show
from kbroker.simulation.invariants.cluster import ClusterInvariants
from kbroker.simulation.scenarios.faults import Fault
from kbroker.simulation.scenarios.plan import Plan, draw_queue_configs, small_limits
from kbroker.simulation.scenarios.programs import Programs
from kbroker.simulation.scenarios.scenarios import SCENARIOS
from kbroker.simulation.scenarios.simulation import Simulation
from kbroker.simulation.scenarios.supervisor import BrokerSupervisor

# Limit for each step after the faults, in virtual seconds.
STEP_TIMEOUT_S = 120.0
# The same for replicas under a load that may be more than followers can fetch: they have the limit above without load.
LOAD_TIMEOUT_S = 20.0
# Limit for the brokers to load all metadata after the faults, in virtual seconds: two session timeouts and more.
METADATA_TIMEOUT_S = 20.0
# The share of the runs in which almost all requests are handled in turns, as otherwise only large ones are.
SMALL_TURNS = 0.2


# Disk faults that take a log offline until a restart. A full disk or missing file descriptors must not.
DISK_FAILURES = ("read error", "write error", "sync error", "bit rot")


class LivenessError(AssertionError):
    """A step did not complete in time, or a log is offline, although no fault is active."""


class Summary(NamedTuple):
    """The result of a run as a process pool returns it. `report` is empty if the run passed."""

    seed: int
    scenario: str
    report: str
    digest: str
    virtual_s: float
    operations: int
    cpu_s: float


@dataclass(slots=True)
class Result:
    seed: int
    scenario: str
    history: History
    digest: str
    virtual_s: float
    failure: str = ""
    anomalies: list[Anomaly] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)

    def report(self) -> str:
        """Format the failure and the anomalies; "" if the run passed."""
        if not self.failure and not self.anomalies:
            return ""
        parts = [f"seed {self.seed} of {self.scenario}: FAILED"]
        if self.failure:
            parts.append(f"{self.failure}\n\nthe last operations:\n{last_operations(self.history)}")
        if self.anomalies:
            parts.append(render(self.history, self.anomalies))
        return "\n\n".join(parts)

    def text(self) -> str:
        return "\n".join(map(show, self.history.operations)) + "\n"


def last_operations(history: History, count: int = 25) -> str:
    return "\n".join(map(show, history.operations[-count:]))


def summarize(seed: int, scenario: str) -> Summary:
    begun = process_time()
    result = simulate(seed, scenario)
    report = result.report()
    operations = len(result.history.operations)
    return Summary(seed, scenario, report, result.digest, result.virtual_s, operations, process_time() - begun)


def simulate(seed: int, scenario: str, *, trace: bool = False, shape: Callable[[Plan], None] | None = None) -> Result:
    """Run a seed of a scenario and check its history. `shape` modifies the plan that was drawn from the seed."""
    plan = Plan.draw(SCENARIOS[scenario], Random(f"{seed}/{scenario}/plan"))
    plan.queues = SCENARIOS[scenario].queues
    if plan.queues:
        plan.broker.update(draw_queue_configs(Random(f"{seed}/{scenario}/queues")))
    plan.recreation = Random(f"{seed}/{scenario}/recreation").random() < SCENARIOS[scenario].recreation
    healing = Random(f"{seed}/{scenario}/healing")
    if healing.random() < SCENARIOS[scenario].healing:
        plan.heal(healing, SCENARIOS[scenario].many_brokers)
    cordoning = Random(f"{seed}/{scenario}/cordoning").random()
    plan.cordoning = plan.brokers > plan.replication_factor and cordoning < SCENARIOS[scenario].cordoning
    plan.add_recurring_faults(SCENARIOS[scenario].recurring)
    # The name of this draw is older than turns; another name would change the runs of all seeds.
    plan.small_turns = Random(f"{seed}/{scenario}/slices").random() < SMALL_TURNS
    plan.group_changes = Random(f"{seed}/{scenario}/group changes").random() < SCENARIOS[scenario].group_changes
    if SCENARIOS[scenario].progress:
        plan.expect_progress()
    if SCENARIOS[scenario].history:
        plan.archive(Random(f"{seed}/{scenario}/history"))
    if SCENARIOS[scenario].security:
        plan.secure()
    if shape is not None:
        shape(plan)
    simulation = Simulation(
        f"{seed}/{scenario}",
        plan.broker,
        coordination=plan.coordination,
        durable=plan.durable,
        brokers=plan.brokers,
        joining=plan.joining,
    )
    if SCENARIOS[scenario].progress:
        simulation.expect_progress(int(plan.broker["min.insync.replicas"]))
    if trace:
        simulation.sim_loop.trace.lines = []
    failure = ""
    with _record_broker_log(simulation), small_limits(small_turns=plan.small_turns):
        try:
            simulation.run(Run(simulation, plan).execute())
        except Exception as error:
            failure = _format_error(error)
        operations = simulation.history.operations
        for operation in operations:
            simulation.sim_loop.trace.record(show(operation))
        result = Result(
            seed,
            scenario,
            simulation.history,
            simulation.sim_loop.trace.digest(),
            simulation.sim_loop.elapsed_ns / 1e9,
            failure,
            trace=simulation.sim_loop.trace.lines or [],
        )
        simulation.close()
    compacted = {name: topic.keys for name, topic in plan.topics.items() if topic.keys}
    replicated = plan.replication_factor > 1
    result.anomalies = check(
        simulation.history, durable=plan.durable, compacted=compacted, replicated=replicated, archived=plan.history
    )
    return result


def _format_error(error: BaseException) -> str:
    """Format an error and its causes, each with the line of code that raised it."""
    parts: list[str] = []
    while error is not None:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        where = f" ({traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})" if traceback is not None else ""
        parts.append(f"{type(error).__name__}: {error}{where}")
        error = error.__cause__  # type: ignore[assignment]
    return "\n  caused by ".join(parts)


class _HistoryHandler(logging.Handler):
    """Adds the broker's log messages to the history as notes, without tracebacks: their paths and wording differ
    between machines, and the notes are part of the run's hash."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.WARNING)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        self._simulation.history.note("broker log", record.getMessage())


@contextmanager
def _record_broker_log(simulation: Simulation) -> Iterator[None]:
    logger = logging.getLogger("kbroker")
    handler, propagate = _HistoryHandler(simulation), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)


class Run:
    """Executes the steps of one run."""

    def __init__(self, simulation: Simulation, plan: Plan) -> None:
        self._simulation = simulation
        self._plan = plan
        self._programs = Programs(simulation, plan)

    async def execute(self) -> None:
        simulation, plan = self._simulation, self._plan
        await simulation.until_serving()
        await self._with_timeout(self._programs.set_up(), "the creation of topics")
        self._programs.start()
        faults = [
            simulation.sim_loop.create_task(self._inject_faults(plan.faults, number))
            for number in range(plan.concurrent_faults)
        ]
        if plan.recurring:
            faults.append(simulation.sim_loop.create_task(self._inject_faults(plan.recurring, plan.concurrent_faults)))
        joining = simulation.sim_loop.create_task(self._install_brokers())
        await asyncio.sleep(plan.seconds)
        await joining
        for task in faults:
            task.cancel()
        for result in await asyncio.gather(*faults, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        self._end_faults()
        await simulation.until_serving()
        simulation.note("faults are over")
        cluster = simulation.cluster
        if cluster is not None:
            await self._until_loaded(cluster)
            await self._until_replicated(cluster, under_load=True)
        await self._with_timeout(self._programs.finish(), "stopping the programs")
        if cluster is not None and plan.may_outrun_followers:
            await self._until_replicated(cluster, under_load=False)
        if simulation.random_for("the end").random() < 0.5:
            # Acknowledged records must survive the process.
            for machine in simulation.machines:
                simulation.note_of(machine, "kill -9 at the end")
                machine.kill()
            await simulation.until_serving()
        await self._with_timeout(self._programs.fetch_on_idle_broker(), "the fetches on an idle broker")
        simulation.history.begin_final_reads()
        await self._with_timeout(self._programs.read_all(), "the final reads")
        simulation.check_invariants()

    async def _install_brokers(self) -> None:
        """Let brokers join the cluster, one after another, while the programs run."""
        random = self._simulation.random_for("joining")
        joining = [machine for machine in self._simulation.machines if machine not in self._simulation.installed]
        moments = sorted(random.uniform(0.0, self._plan.seconds) for _ in joining)
        for machine, pause_s in zip(joining, [b - a for a, b in pairwise([0.0, *moments])], strict=True):
            await asyncio.sleep(pause_s)
            self._simulation.install(machine)

    async def _inject_faults(self, faults: Mapping[str, Fault], number: int) -> None:
        random = self._simulation.random_for(f"trouble {number}")
        names = list(faults)
        while True:
            await asyncio.sleep(random.expovariate(1 / self._plan.pause_s))
            await faults[random.choice(names)](self._simulation, random)

    def _end_faults(self) -> None:
        """End all faults, also those that were cancelled in the middle."""
        simulation = self._simulation
        simulation.end_faults()
        simulation.put_metadata_back()
        simulation.network.faults.heal_all()
        for machine in simulation.machines:
            machine.disk.faults.stop()
            machine.disk.capacity = None
            machine.disk.read_only = False
            machine.disk.cold = 0.0
            machine.clock.skew_ms = machine.usual_skew_ms
            machine.cancel_crash()
            if machine.paused:
                machine.resume()
        if simulation.coordination is not None:
            simulation.coordination.heal_all()
        for supervisor in simulation.supervisors.values():
            self._end_offline_logs(supervisor)

    async def _until_loaded(self, cluster: ClusterInvariants) -> None:
        """Wait until all brokers have the same metadata. Raises LivenessError."""
        deadline = self._simulation.sim_loop.time() + METADATA_TIMEOUT_S
        while outdated := cluster.outdated_brokers():
            if self._simulation.sim_loop.time() > deadline:
                raise LivenessError(f"after {METADATA_TIMEOUT_S} s {'; '.join(outdated)}")
            await asyncio.sleep(0.1)

    async def _until_replicated(self, cluster: ClusterInvariants, *, under_load: bool) -> None:
        """Wait until all replicas are in sync. Raises LivenessError.

        Under a load that followers cannot keep up with, they may never be: then this returns after LOAD_TIMEOUT_S.
        """
        may_be_late = under_load and self._plan.may_outrun_followers
        timeout_s = LOAD_TIMEOUT_S if may_be_late else STEP_TIMEOUT_S
        deadline = self._simulation.sim_loop.time() + timeout_s
        while missing := cluster.missing_replicas():
            if self._simulation.sim_loop.time() > deadline:
                late = f"not in sync after {timeout_s} s: {'; '.join(missing)}"
                if not may_be_late:
                    raise LivenessError(late)
                self._simulation.note(f"{late}; the load ends")
                return
            await asyncio.sleep(0.1)

    def _end_offline_logs(self, supervisor: BrokerSupervisor) -> None:
        """Kill the broker if it has offline logs. Raise LivenessError if there is no reason for them."""
        machine = supervisor.machine
        offline = [partition.log for partition in supervisor.partitions() if partition.log.health.offline is not None]
        # A log that is closing does not count: the broker is stopping.
        failed = [log for log in offline if not log.durability.is_closing]
        has_failed = any(machine.disk.faults.injected[kind] for kind in DISK_FAILURES)
        if failed and not has_failed and "read_only" not in self._plan.faults:
            log = failed[0]
            raise LivenessError(
                f"the log of {log.tp} is offline although the disk has not failed: {log.health.offline}"
            )
        if offline:
            # The operator restarts the broker, as its log message requests.
            self._simulation.note_of(machine, "kill -9: logs are offline")
            machine.kill()

    async def _with_timeout(self, work: Awaitable[None], what: str) -> None:
        try:
            await asyncio.wait_for(work, STEP_TIMEOUT_S)
        except TimeoutError:
            raise LivenessError(f"{what} took more than {STEP_TIMEOUT_S} s although no fault is active") from None
