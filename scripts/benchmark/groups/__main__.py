"""Groups: members that join, restart and consume, with clients that use almost no processor time.

kbroker and Apache Kafka 4.4.0 are measured in turn. A first round warms both up and is not counted. Figures are
medians. The processor time is that of the whole server, from the first request of the members to the last response.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from kbroker.runtime.system import raise_descriptor_limit
from protocol.records.batch import build_batch
from scripts.benchmark.capacity.server import Server
from scripts.benchmark.cases import RUN, Meter
from scripts.benchmark.frame import (
    COMPARISON,
    add_options,
    comparison,
    footer,
    is_chosen,
    median_of,
    parser,
    publish,
    rounds_text,
    running,
    scratch_directory,
    today,
    write_json,
)
from scripts.benchmark.groups.connections import Connections
from scripts.benchmark.groups.members import ClassicMember, ConsumerMember, Member, ShareConsumer, ShareMember
from scripts.benchmark.peers import Kafka, Kbroker, Peer

# Members that wait for the others send a heartbeat after this time.
PAUSE_S = 0.5
GROUP = 32  # the type of a resource of IncrementalAlterConfigs
SECONDS, PROCESSOR, MOVES, RATE = "s until stable", "processor s", "partitions moved needlessly", "records/s"
PER_RECORD, PER_HEARTBEAT = "processor us/record", "processor us/heartbeat"
BOUNDS = {SECONDS: "≤ 1.00", PROCESSOR: "≤ 1.00", RATE: "≥ 1.00", PER_RECORD: "≤ 1.00", PER_HEARTBEAT: "≤ 1.00"}
RECORD_BYTES, BATCH_RECORDS = 100, 500

Figures = dict[str, float]
_numbers = count()


class GroupServer(Server):
    """A server with its connections of members, which stay open from one measurement to the next."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer, peer.name)
        self.connections = Connections(peer.port)

    def group(self, **configs: str) -> str:
        """Return the id of a new group. `configs`: those of the group, with `_` in place of `.` in their names."""
        group_id = f"group-{next(_numbers)}"
        self.find_coordinator(group_id, key_type=0)
        if configs:
            rows = {key.replace("_", "."): value for key, value in configs.items()}
            self.connection.alter_configs(GROUP, group_id, rows)
        return group_id

    def settle(self, members: Sequence[Member], is_stable: Callable[[], bool], pause_s: float = PAUSE_S) -> Figures:
        """Let members run until their group is stable."""
        self.connections.open(len(members))
        meter = Meter(self.peer)
        seconds = self.connections.run(members, is_stable, pause_s)
        return {SECONDS: seconds, PROCESSOR: meter.figure(RUN, 0).processor_time or 0.0}

    def leave(self, members: Sequence[ConsumerMember | ClassicMember]) -> None:
        """Let all members leave, so that no session expires during the next measurement."""
        for member in members:
            member.leave()
        self.connections.run(members, lambda: all(member.is_gone for member in members), PAUSE_S)

    def fill(self, topic: str, records: int) -> None:
        batch = build_batch([(int(time.time() * 1000), None, bytes(RECORD_BYTES), ())] * BATCH_RECORDS)
        batches = (bytearray(batch) for _ in range(records // BATCH_RECORDS))
        self.connection.produce_batches(topic, batches, 5)


def is_stable(members: Sequence[ConsumerMember], partitions: int) -> bool:
    """Return whether all partitions are divided evenly, and nobody has to acknowledge anything."""
    sizes = [len(member.partitions) for member in members]
    return (
        sum(sizes) == partitions
        and max(sizes) - min(sizes) <= 1
        and len({member.epoch for member in members}) == 1
        and all(member.is_settled for member in members)
    )


def joining(server: GroupServer, members: int, partitions: int, assignor: str | None = None) -> Figures:
    """All members of a consumer group join at once."""
    topic, group = server.kept_topic(f"{partitions}", partitions)[0], server.group()
    all_members = [ConsumerMember(group, topic, assignor) for _ in range(members)]
    figures = server.settle(all_members, partial(is_stable, all_members, partitions))
    server.leave(all_members)
    return figures


def many_groups(server: GroupServer, groups: int, partitions: int) -> Figures:
    """Groups of one member each, all at once."""
    topic = server.kept_topic(f"{partitions}", partitions)[0]
    members = [ConsumerMember(server.group(), topic) for _ in range(groups)]
    figures = server.settle(members, lambda: all(is_stable([member], partitions) for member in members))
    server.leave(members)
    return figures


def heartbeats(server: GroupServer, members: int, each: int) -> Figures:
    """Heartbeats of a stable consumer group, as fast as the server responds."""
    topic, group = server.kept_topic(f"{members}", members)[0], server.group()
    all_members = [ConsumerMember(group, topic) for _ in range(members)]
    server.settle(all_members, partial(is_stable, all_members, members))
    meter = Meter(server.peer)
    begin = sum(member.heartbeats for member in all_members)
    server.connections.run(
        all_members, lambda: sum(member.heartbeats for member in all_members) >= begin + members * each, 0
    )
    sent = sum(member.heartbeats for member in all_members) - begin
    figures = {PER_HEARTBEAT: 1e6 / sent * (meter.figure(RUN, 0).processor_time or 0.0)}
    server.leave(all_members)
    return figures


class Moves:
    """Counts the partitions that change their owner."""

    def __init__(self, members: Sequence[ConsumerMember]) -> None:
        self.count = 0
        self._owners = {partition: member for member in members for partition in member.partitions}
        for member in members:
            member.on_assigned = self.on_assigned

    def on_assigned(self, member: ConsumerMember, added: frozenset[int]) -> None:
        for partition in added:
            self.count += self._owners[partition] is not member
            self._owners[partition] = member


def rolling_restart(server: GroupServer, members: int, partitions: int, *, static: bool) -> Figures:
    """One member after the other leaves and comes back, each time until the group is stable.

    The partitions of a member that leaves must move, and those that it has afterwards; those of a static member stay.
    """
    topic, group = server.kept_topic(f"{partitions}", partitions)[0], server.group(consumer_assignment_interval_ms="0")
    ids = [f"{group}-{number}" if static else None for number in range(members)]
    all_members = [ConsumerMember(group, topic, instance_id=instance_id) for instance_id in ids]
    server.settle(all_members, partial(is_stable, all_members, partitions))
    moves, needed, total = Moves(all_members), 0, {SECONDS: 0.0, PROCESSOR: 0.0}
    for member in all_members:
        others = [other for other in all_members if other is not member]
        had = member.partitions
        member.leave()
        steps = [server.settle([member], lambda member=member: member.is_gone)]  # type: ignore[misc]
        if not static:
            steps.append(server.settle(others, partial(is_stable, others, partitions), 0))
        member.restart()
        steps.append(server.settle(all_members, partial(is_stable, all_members, partitions), 0))
        needed += 0 if static else len(had) + len(member.partitions)
        total = {name: value + sum(step[name] for step in steps) for name, value in total.items()}
    server.leave(all_members)
    return {**total, MOVES: moves.count - needed}


def classic(server: GroupServer, members: int) -> Figures:
    """All members of a classic group join at once."""
    group = server.group()
    all_members = [ClassicMember(group) for _ in range(members)]

    def is_complete() -> bool:
        newest = max(member.generation for member in all_members)
        return all(member.is_settled and member.generation == newest for member in all_members) and (
            max(member.size for member in all_members) == members
        )

    figures = server.settle(all_members, is_complete)
    server.leave(all_members)
    return figures


def many_classic_groups(server: GroupServer, groups: int) -> Figures:
    members = [ClassicMember(server.group()) for _ in range(groups)]
    figures = server.settle(members, lambda: all(member.is_settled for member in members))
    server.leave(members)
    return figures


def sharing(server: GroupServer, members: int, records: int) -> Figures:
    """The members of a share group consume a topic of one partition, and accept each record."""
    topic, _ = server.create_topic(1)
    server.fill(topic, records)
    group = server.group(share_auto_offset_reset="earliest")
    all_members = [ShareMember(group, topic) for _ in range(members)]
    server.settle(all_members, lambda: all(member.partitions and member.is_settled for member in all_members))
    consumers: list[ShareConsumer] = [member.consumer() for member in all_members]
    figures = server.settle(consumers, lambda: sum(each.accepted for each in consumers) >= records)
    server.leave(all_members)
    server.delete_topic(topic)
    return {RATE: records / figures[SECONDS], PER_RECORD: 1e6 * figures[PROCESSOR] / records}


class Case(NamedTuple):
    name: str
    measure: Callable[[GroupServer], Figures]


def all_cases() -> list[Case]:
    return [
        Case("1,000 members join a consumer group, 1,000 partitions", partial(joining, members=1000, partitions=1000)),
        Case("1,000 members join a consumer group, 3,000 partitions", partial(joining, members=1000, partitions=3000)),
        Case("1,000 members join a consumer group, 3,000 partitions, range",
             partial(joining, members=1000, partitions=3000, assignor="range")),
        Case("1,000 consumer groups of 1 member", partial(many_groups, groups=1000, partitions=6)),
        Case("heartbeats of 1,000 members", partial(heartbeats, members=1000, each=20)),
        Case("rolling restart of 100 members, 1,000 partitions",
             partial(rolling_restart, members=100, partitions=1000, static=False)),
        Case("rolling restart of 100 static members, 1,000 partitions",
             partial(rolling_restart, members=100, partitions=1000, static=True)),
        Case("1,000 members join a classic group", partial(classic, members=1000)),
        Case("1,000 classic groups of 1 member", partial(many_classic_groups, groups=1000)),
        Case("share group, 1 member, 100 B", partial(sharing, members=1, records=200_000)),
        Case("share group, 4 members, 100 B", partial(sharing, members=4, records=200_000)),
    ]  # fmt: skip


def rows_of(case: Case, figures: dict[str, list[Figures]]) -> list[str]:
    """Return a row for each figure of a case."""
    sides = figures[Kbroker.name], figures.get(Kafka.name, [])
    return [
        comparison(f"{case.name}, {name}", median_of(sides[0], name), median_of(sides[1], name), BOUNDS.get(name, ""))
        for name in sides[0][0]
    ]


def main() -> int:
    options = parser("--groups", __doc__, 3)
    add_options(options, kafka=True)
    args = options.parse_args()
    raise_descriptor_limit()
    cases = [case for case in all_cases() if is_chosen(case.name, args.only)]
    figures: dict[str, dict[str, list[Figures]]] = {case.name: {} for case in cases}
    with scratch_directory() as base:
        peers: list[Peer] = [Kbroker(base / "kbroker")]
        if not args.no_kafka:
            peers.append(Kafka(base / "kafka"))
        with running(*peers):
            servers = [GroupServer(peer) for peer in peers]
            for number in range(-1, args.rounds):
                for case in cases:
                    for server in servers[:: 1 if number % 2 else -1]:
                        measured = case.measure(server)
                        if number >= 0:
                            figures[case.name].setdefault(server.peer.name, []).append(measured)
                    print(".", end="", file=sys.stderr, flush=True)
    print(footer(rounds_text(args.rounds)))
    rows = [row for case in cases for row in rows_of(case, figures[case.name])]
    publish(args, "groups", "--groups", COMPARISON, rows, f"{today()}, {rounds_text(args.rounds)}")
    write_json(args, results=figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
