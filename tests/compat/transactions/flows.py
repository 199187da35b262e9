"""Consume-transform-produce programs of each client, two in a group, and the topic that they read."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove
from kafka.errors import NoError

from tests.compat.support import DEADLINE_S, eventually, unique
from tests.compat.transactions.processes import Program, transactions

PARTITIONS = 4
# The source writes less while a program has this many inputs of a partition left, so that the end comes soon anywhere:
BACKLOG = 1000
# in one of this many rounds, which are a second.
ROUNDS = 20


class Flow:
    """Two programs of one client in one group, from the source to a topic of their own."""

    def __init__(
        self, client: str, command: list[str], bootstrap: str, source: str, directory: Path, session_timeout_ms: int
    ) -> None:
        self.client = client
        self.group = unique(f"flow-{client}")
        self.target = unique(f"target-{client}")
        self.programs = []
        for number in range(2):
            named = [bootstrap, self.group, source, self.target, f"{self.group}-{number}"]
            timeouts = [str(session_timeout_ms), str(3 * session_timeout_ms)]
            self.programs.append(Program([*command, *named, *timeouts], directory / f"{client}-{number}", named[-1]))

    def start(self) -> None:
        for program in self.programs:
            program.start()

    def kill(self) -> None:
        for program in self.programs:
            program.kill()

    def done(self) -> list[int]:
        """By partition, the offset after the last input of an acknowledged transaction."""
        ends = [0] * PARTITIONS
        for program in self.programs:
            for transaction in transactions(program.lines()):
                if transaction.outcome == "committed":
                    for partition, taken in transaction.inputs.items():
                        ends[partition] = max(ends[partition], taken.stop)
        return ends

    def story(self, partition: int, offset: int) -> list[str]:
        """What was done with an input."""
        return [
            f"{program.name}: {transaction}"
            for program in self.programs
            for transaction in transactions(program.lines())
            if offset in transaction.inputs.get(partition, ())
        ]

    def report(self) -> str:
        seen = sum((program.seen() for program in self.programs), Counter())
        return (
            f"{self.client}: {seen['started']} starts, {seen['sent']} transactions begun, {seen['committed']} "
            f"acknowledged, {seen['aborted']} aborted after an error, {seen['gave up']} times begun anew after one"
        )


def meanwhile(flows: Sequence[Flow], condition: Callable[[], bool], what: str, progress: Callable[[], object]) -> None:
    """Wait for the condition as long as there is progress; programs that give up are started again, and failures say
    how far each has come."""

    def met() -> bool:
        for flow in flows:
            for program in flow.programs:
                program.revive()
        return condition()

    try:
        eventually(met, what, interval=0.2, progress=progress)
    except AssertionError as error:
        told = [program.tail() for flow in flows for program in flow.programs]
        raise AssertionError("\n".join([str(error), *told])) from error


def commits(programs: Sequence[Program]) -> list[int]:
    return [program.count("committed") for program in programs]


def progress(flows: Sequence[Flow], by: int = 1, programs: Sequence[int] = (0, 1)) -> None:
    """Every program, or only these of each flow, has committed so many more transactions."""
    waited = [flow.programs[number] for flow in flows for number in programs]
    wanted = [count + by for count in commits(waited)]

    def reached() -> bool:
        return all(count >= enough for count, enough in zip(commits(waited), wanted, strict=True))

    meanwhile(flows, reached, f"{by} more transactions of every program", lambda: commits(waited))


def stop_all(flows: Sequence[Flow], stage: str, number: int) -> list[Program]:
    """One program of each flow waits at this stage."""
    stopped = [flow.programs[number] for flow in flows]
    for program in stopped:
        program.stop_at(stage)
    meanwhile(
        flows,
        lambda: all(program.stopped() for program in stopped),
        f"every program at {stage}",
        lambda: [program.stopped() or program.count("committed") for program in stopped],
    )
    return stopped


class Source:
    """A topic that an idempotent producer writes to until `stop`: some hundred records a second, and few while a
    program is far behind."""

    def __init__(self, bootstrap: str) -> None:
        self.topic = unique("source")
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
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
        rounds, behind = 0, False
        while not self._stopping.wait(0.05):
            rounds += 1
            if rounds % ROUNDS == 0:
                behind = any(
                    len(part) - done > BACKLOG
                    for flow in self._flows
                    for part, done in zip(self.written, flow.done(), strict=True)
                )
            # Never nothing: a program may wait for its next input while another one waits for the test.
            if not behind or rounds % ROUNDS == 0:
                self._write()
            self._producer.poll(0)

    def _write(self) -> None:
        for partition, part in enumerate(self.written):
            for _ in range(5):
                value = b"%d %d" % (partition, len(part))
                part.append(value)
                self._producer.produce(self.topic, value, partition=partition)


def create(bootstrap: str, topics: Sequence[str], configs: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1, config=configs or {}) for name in topics]).values():
        made.result(DEADLINE_S)


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    """The group's stable offsets of each partition; empty while they are not known."""
    asked = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, asked)], require_stable=True)
        found = answer[group].result(DEADLINE_S).topic_partitions
    except KafkaException:
        return []
    return [tp.offset for tp in found]


def members(bootstrap: str, group: str) -> dict[str, str]:
    """The member ids of a group by client id; empty while they are not known."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        found = admin.describe_consumer_groups([group])[group].result(DEADLINE_S).members
    except KafkaException:
        return {}
    return {member.client_id: member.member_id for member in found}


def only_member(bootstrap: str, flows: Sequence[Flow], number: int) -> None:
    """Wait until the other program of each flow has been removed from its group."""

    def alone() -> list[bool]:
        return [list(members(bootstrap, flow.group)) == [flow.programs[number].client_id] for flow in flows]

    eventually(lambda: all(alone()), f"only programs {number} in their groups")


def remove_member(bootstrap: str, group: str, client_id: str) -> None:
    """Remove a member from its group, as the end of its session does, unless that has come first."""

    def removed() -> bool:
        known = members(bootstrap, group)
        if member_id := known.get(client_id):
            admin = KafkaAdminClient(bootstrap_servers=bootstrap)
            try:
                return admin.remove_group_members(group, [MemberToRemove(member_id=member_id)]) == {member_id: NoError}
            finally:
                admin.close()
        return bool(known)

    eventually(removed, f"{client_id} removed from {group}")


def drained(flows: Sequence[Flow], bootstrap: str, source: Source) -> None:
    """Every flow has committed the end of every partition."""
    wanted = [len(part) for part in source.written]
    meanwhile(
        flows,
        lambda: all(committed(bootstrap, flow.group, source.topic) == wanted for flow in flows),
        f"every group at {wanted}",
        lambda: [flow.done() for flow in flows],
    )
