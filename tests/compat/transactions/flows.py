"""Flows: consume-transform-produce programs of each client, two in a group; and the topic that they read."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove
from kafka.errors import NoError

from tests.compat.support import DEADLINE_S, eventually, unique
from tests.compat.transactions.processes import Program, transactions

PARTITIONS = 4
REQUEST_TIMEOUT_MS = 30_000
# While a flow has more unprocessed inputs than this in a partition, the source writes only in one of
# `INTERVALS_PER_CHECK` intervals, so that a slow machine can finish.
MAX_BACKLOG = 1000
INTERVAL_S = 0.5
INTERVALS_PER_CHECK = 5


class Flow:
    """Two programs of one client in one group, which write to a topic of their own."""

    def __init__(
        self,
        client: str,
        command: list[str],
        bootstrap: str,
        source: str,
        directory: Path,
        session_timeout_ms: int,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self.client = client
        self.group = unique(f"flow-{client}")
        self.target = unique(f"target-{client}")
        self.programs = []
        for number in range(2):
            transactional_id = f"{self.group}-{number}"
            arguments = [bootstrap, self.group, source, self.target, transactional_id]
            timeouts = list(map(str, (session_timeout_ms, 3 * session_timeout_ms, request_timeout_ms)))
            self.programs.append(
                Program([*command, *arguments, *timeouts], directory / f"{client}-{number}", transactional_id)
            )

    def start(self) -> None:
        for program in self.programs:
            program.start()

    def kill(self) -> None:
        for program in self.programs:
            program.kill()

    def processed_ends(self) -> list[int]:
        """Return for each partition the offset after the last input of an acknowledged transaction."""
        ends = [0] * PARTITIONS
        for program in self.programs:
            for transaction in transactions(program.lines()):
                if transaction.outcome == "committed":
                    for partition, offsets in transaction.inputs.items():
                        ends[partition] = max(ends[partition], offsets.stop)
        return ends

    def history(self, partition: int, offset: int) -> list[str]:
        """Return every transaction that had this input."""
        return [
            f"{program.name}: {transaction}"
            for program in self.programs
            for transaction in transactions(program.lines())
            if offset in transaction.inputs.get(partition, ())
        ]

    def report(self) -> str:
        counts = sum((program.line_counts() for program in self.programs), Counter())
        return (
            f"{self.client}: {counts['started']} starts, {counts['sent']} transactions begun, {counts['committed']} "
            f"acknowledged, {counts['aborted']} aborted after an error, {counts['gave up']} restarts after an error"
        )


def wait_while_running(
    flows: Sequence[Flow], condition: Callable[[], bool], description: str, progress: Callable[[], object]
) -> None:
    """Wait for the condition as long as there is progress. Programs that give up are restarted; a failure shows the
    last output of every program."""

    def is_met() -> bool:
        for flow in flows:
            for program in flow.programs:
                program.restart_if_given_up()
        return condition()

    try:
        eventually(is_met, description, interval=0.2, progress=progress)
    except AssertionError as error:
        outputs = [program.tail() for flow in flows for program in flow.programs]
        raise AssertionError("\n".join([str(error), *outputs])) from error


def commits(programs: Sequence[Program]) -> list[int]:
    return [program.count("committed") for program in programs]


def wait_for_commits(flows: Sequence[Flow], count: int = 1, programs: Sequence[int] = (0, 1)) -> None:
    """Wait until these programs of each flow have committed `count` more transactions."""
    waited_for = [flow.programs[number] for flow in flows for number in programs]
    targets = [commits_before + count for commits_before in commits(waited_for)]

    def reached() -> bool:
        return all(now >= target for now, target in zip(commits(waited_for), targets, strict=True))

    wait_while_running(flows, reached, f"{count} more transactions of every program", lambda: commits(waited_for))


def stop_programs(flows: Sequence[Flow], stage: str, number: int) -> list[Program]:
    """Stop one program of each flow at a stage, and return the stopped programs."""
    stopped = [flow.programs[number] for flow in flows]
    for program in stopped:
        program.stop_at(stage)
    wait_while_running(
        flows,
        lambda: all(program.is_stopped() for program in stopped),
        f"every program at {stage}",
        lambda: [program.is_stopped() or program.count("committed") for program in stopped],
    )
    return stopped


class Source:
    """A topic and an idempotent producer that writes forty records a second until `stop`."""

    def __init__(
        self, bootstrap: str, interval_s: float = INTERVAL_S, settings: Mapping[str, object] | None = None
    ) -> None:
        """Write five records for each partition every `interval_s`. `settings`: further ones of the producer."""
        self.topic = unique("source")
        self._interval_s = interval_s
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        own = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer({**own, **(settings or {})})
        self._stopping = threading.Event()
        self._flows: Sequence[Flow] = ()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, flows: Sequence[Flow]) -> None:
        self._flows = flows
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the source did not stop"
        eventually(
            lambda: self._producer.flush(1) == 0, "the source's last records", progress=lambda: len(self._producer)
        )

    def abandon(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        interval, is_far_ahead = 0, False
        while not self._stopping.wait(self._interval_s):
            interval += 1
            if interval % INTERVALS_PER_CHECK == 0:
                is_far_ahead = any(
                    len(part) - end > MAX_BACKLOG
                    for flow in self._flows
                    for part, end in zip(self.written, flow.processed_ends(), strict=True)
                )
            # Some records always: a program may need an input to reach a stage at which the test waits for it.
            if not is_far_ahead or interval % INTERVALS_PER_CHECK == 0:
                self._write()
            self._producer.poll(0)

    def _write(self) -> None:
        for partition, part in enumerate(self.written):
            for _ in range(5):
                value = b"%d %d" % (partition, len(part))
                part.append(value)
                self._producer.produce(self.topic, value, partition=partition)


def create_topics(
    bootstrap: str, topics: Sequence[str], configs: dict[str, str] | None = None, replication_factor: int = 1
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new_topics = [NewTopic(name, PARTITIONS, replication_factor, config=configs or {}) for name in topics]
    for future in admin.create_topics(new_topics).values():
        future.result(DEADLINE_S)


def committed_offsets(bootstrap: str, group: str, topic: str) -> list[int]:
    """Return the group's stable offset of each partition; empty on an error."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    request = [ConsumerGroupTopicPartitions(group, partitions)]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        offsets = admin.list_consumer_group_offsets(request, require_stable=True)[group].result(DEADLINE_S)
    except KafkaException:
        return []
    return [tp.offset for tp in offsets.topic_partitions]


def members(bootstrap: str, group: str) -> dict[str, str]:
    """Return the member ids of a group by client id; empty on an error."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        description = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    except KafkaException:
        return {}
    return {member.client_id: member.member_id for member in description.members}


def wait_for_only_member(bootstrap: str, flows: Sequence[Flow], number: int) -> None:
    """Wait until the other program of each flow has been removed from its group."""

    def are_alone() -> bool:
        return all(list(members(bootstrap, flow.group)) == [flow.programs[number].client_id] for flow in flows)

    eventually(are_alone, f"only programs {number} in their groups")


def remove_member(bootstrap: str, group: str, client_id: str) -> None:
    """Remove a member from its group, if its session has not expired before."""

    def is_removed() -> bool:
        member_ids = members(bootstrap, group)
        if member_id := member_ids.get(client_id):
            admin = KafkaAdminClient(bootstrap_servers=bootstrap)
            try:
                return admin.remove_group_members(group, [MemberToRemove(member_id=member_id)]) == {member_id: NoError}
            finally:
                admin.close()
        return bool(member_ids)

    eventually(is_removed, f"{client_id} removed from {group}")


def wait_until_drained(flows: Sequence[Flow], bootstrap: str, source: Source) -> None:
    """Wait until every flow has committed the end of every partition."""
    ends = [len(part) for part in source.written]
    wait_while_running(
        flows,
        lambda: all(committed_offsets(bootstrap, flow.group, source.topic) == ends for flow in flows),
        f"every group at {ends}",
        lambda: [flow.processed_ends() for flow in flows],
    )
