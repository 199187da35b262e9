"""The online conversion of groups: policies, limits, failures, large groups, and mistakes that transcripts reveal."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.coordinator.group.classic import classic_groups
from kbroker.coordinator.group.consumer import classic_members, conversion
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.group_shard import GroupKind
from protocol.errors import ErrorCode
from tests.unit.support import group_transcript as transcript
from tests.unit.support.classic_members import ClassicModelMember
from tests.unit.support.consumer_members import ModelMember
from tests.unit.support.group_coordinator import NODE, Harness

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts" / "consumer"


@pytest.fixture
def start() -> Iterator[Callable[..., Harness]]:
    """Return the function that starts a broker with configs, and a topic of 6 partitions."""
    brokers: list[Harness] = []

    def start_broker(**config: Any) -> Harness:
        brokers.append(Harness(**config))
        brokers[-1].create_topic("t", 6)
        return brokers[-1]

    yield start_broker
    for broker in brokers:
        broker.close()


def join_classic(broker: Harness) -> ClassicModelMember:
    member = ClassicModelMember({"t"})
    for _ in range(5):
        member.step(broker)
        broker.loop.run_ready()
    return member


def type_of_group(broker: Harness) -> str:
    return broker.shard().groups["g"].type_name


def members_of(broker: Harness) -> set[str]:
    group: Any = broker.shard().groups["g"]
    return set(group.members)


POLICIES = {
    "disabled": (False, False, False),
    "UPGRADE": (True, True, False),
    "downgrade": (False, True, True),
    "bidirectional": (True, True, True),
}


@pytest.mark.parametrize(("policy", "expected"), POLICIES.items())
def test_the_policy_says_which_groups_are_converted(
    policy: str, expected: tuple[bool, bool, bool], start: Callable[..., Harness]
) -> None:
    """Unless it is `disabled`, members of the classic protocol may join a consumer group."""
    upgrades, admits, downgrades = expected
    broker = start(group_consumer_migration_policy=policy)
    classic = join_classic(broker)
    error = ModelMember("m", {"t"}).heartbeat(broker)
    assert error is (ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)
    assert type_of_group(broker) == ("consumer" if upgrades else "classic")

    broker = start(group_consumer_migration_policy=policy)
    member = ModelMember("m", {"t"})
    member.heartbeat(broker)
    classic = join_classic(broker)
    assert classic.is_stable is admits
    member.leave(broker)
    assert type_of_group(broker) == ("classic" if downgrades else "consumer")
    assert (classic.member_id in members_of(broker)) is admits


def test_a_group_is_not_converted_to_one_that_would_be_too_large(start: Callable[..., Harness]) -> None:
    broker = start(group_consumer_max_size=1)
    joined = [join_classic(broker)]
    joined.append(ClassicModelMember({"t"}))
    for _ in range(12):
        for member in joined:
            member.step(broker)
            broker.loop.run_ready()
    assert ModelMember("m", {"t"}).heartbeat(broker) is ErrorCode.GROUP_ID_NOT_FOUND
    assert type_of_group(broker) == "classic"

    broker = start(group_max_size=1)
    member = ModelMember("m", {"t"})
    member.heartbeat(broker)
    assert [join_classic(broker).is_stable for _ in range(2)] == [True, True]
    member.leave(broker)
    assert type_of_group(broker) == "consumer"


def test_a_conversion_that_cannot_be_written_has_no_effect(start: Callable[..., Harness]) -> None:
    broker = start()
    classic = join_classic(broker)
    broker.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    assert ModelMember("m", {"t"}).heartbeat(broker) is not ErrorCode.NONE
    broker.log.append_error = None
    broker.loop.pass_ms(1_000)
    assert type_of_group(broker) == "classic"
    classic.step(broker)
    assert classic.is_stable
    assert len(classic.owned) == 6


def test_a_large_group_is_converted_with_several_batches(start: Callable[..., Harness]) -> None:
    """The assignments stay those of the classic group."""
    broker = start(message_max_bytes=10_000)
    members = [ClassicModelMember({"t"}) for _ in range(40)]
    for _ in range(6):
        for member in members:
            member.step(broker)
        broker.loop.pass_ms(10)
    before = {member.member_id: set(member.owned) for member in members}
    assert sum(map(len, before.values())) == 6
    newcomer = ModelMember("m", set())
    assert newcomer.heartbeat(broker) is ErrorCode.NONE
    group = broker.shard().find(ConsumerGroup, "g")
    assert group is not None
    assert len(group.members) == 41
    for member_id, owned in before.items():
        assigned = group.members[member_id].assigned
        assert {(topic_id, index) for topic_id, epochs in assigned.items() for index in epochs} == owned
    newcomer.leave(broker)
    assert type_of_group(broker) == "classic"
    assert members_of(broker) == set(before)


def test_a_new_coordinator_completes_a_conversion(start: Callable[..., Harness]) -> None:
    """The partitions of the member that has left are assigned, though no member is told by the old coordinator."""
    broker = start()
    classic, member = join_classic(broker), ModelMember("m", {"t"})
    for _ in range(4):
        member.heartbeat(broker)
        classic.step(broker)
        broker.loop.run_ready()
    assert len(classic.owned) == len(member.owned) == 3
    member.leave(broker)
    index = broker.groups.runtime.partition_for("g")
    broker.run(broker.elect(index, NODE + 1))
    broker.run(broker.elect(index, NODE))
    broker.loop.pass_ms(10)
    for _ in range(5):
        classic.step(broker)
        broker.loop.run_ready()
    assert type_of_group(broker) == "classic"
    assert len(classic.owned) == 6


def test_a_group_stays_one_of_the_consumer_protocol_if_its_record_would_be_too_large(
    start: Callable[..., Harness],
) -> None:
    broker = start(message_max_bytes=1_500)
    member, others = ModelMember("m", {"t"}), []
    member.heartbeat(broker)
    for _ in range(16):
        others.append(join_classic(broker))
    member.leave(broker)
    assert type_of_group(broker) == "consumer"
    assert members_of(broker) == {other.member_id for other in others}


def test_a_removal_that_cannot_be_written_is_tried_again(start: Callable[..., Harness]) -> None:
    broker = start(group_consumer_session_timeout_ms=1_000)
    member = ModelMember("m", {"t"})
    member.heartbeat(broker)
    broker.log.is_under_min_isr = True
    broker.loop.pass_ms(3_000)
    assert members_of(broker) == {"m"}
    broker.log.is_under_min_isr = False
    broker.loop.pass_ms(1_100)
    assert members_of(broker) == set()


def test_no_member_is_lost_while_a_large_group_is_converted(start: Callable[..., Harness]) -> None:
    """The records are replayed in several turns. The heartbeats in between find none or some of the members."""
    broker = start()
    members = [ClassicModelMember({"t"}) for _ in range(150)]
    for _ in range(6):
        for member in members:
            member.step(broker)
        broker.loop.pass_ms(10)
    ids = [member.member_id for member in members]
    newcomer = ModelMember("m", set())
    for epoch in (0, -1):
        newcomer.epoch = epoch
        conversion_task = broker.loop.create_task(broker.serve(newcomer.request(), 1))
        codes = set()
        while not conversion_task.done():
            broker.run(asyncio.sleep(0))
            beats = [member._heartbeat() for member in (members[0], members[-1])]
            codes |= {broker.run(broker.serve(beat, 4)).error_code for beat in beats}
        assert ErrorCode.REBALANCE_IN_PROGRESS in codes
        assert codes <= {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}
        assert broker.shard().converted_groups == set()
    assert members_of(broker) == set(ids)


# Mistakes.


def remove_any_kind(patch: pytest.MonkeyPatch) -> None:
    """The tombstone of a group deletes the one of another kind that it has become."""

    def remove(self: GroupKind[Any], group_id: str) -> None:
        group = self.shard.groups.pop(group_id, None)
        if group is not None:
            self.shard.kind_of(group).close(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    patch.setattr(GroupKind, "remove", remove)


def lose_assignment(patch: pytest.MonkeyPatch) -> None:
    """A group that becomes a classic one loses its assignments."""
    patch.setattr(conversion, "partitions_by_name", lambda *_: {})


def reset_generation(patch: pytest.MonkeyPatch) -> None:
    """The generation does not continue the group epoch."""
    real = classic_members.downgrade_records

    def downgrade_records(group: Any, remaining: Any, _: int, *more: Any, **named: Any) -> list[object]:
        return real(group, remaining, 1, *more, **named)

    patch.setattr(classic_members, "downgrade_records", downgrade_records)


def forget_sessions(patch: pytest.MonkeyPatch) -> None:
    """The sessions of a converted group do not start, and its members are not told to join again."""
    patch.setattr(classic_groups.ClassicGroups, "on_converted", lambda *_, **__: None)


def ignore_session_timeout(patch: pytest.MonkeyPatch) -> None:
    """Members of the classic protocol have the session timeout of consumer groups."""
    real = classic_members.ClassicMembersOfConsumerGroups._set_deadline

    def set_deadline(self: Any, group: Any, reason: str, member_id: str, timeout_ms: int) -> None:
        real(self, group, reason, member_id, 3_000 if reason == "session" else timeout_ms)

    patch.setattr(classic_members.ClassicMembersOfConsumerGroups, "_set_deadline", set_deadline)


def keep_group(patch: pytest.MonkeyPatch) -> None:
    """A group without members of the consumer protocol stays a consumer group."""
    patch.setattr(classic_members, "can_downgrade", lambda *_: False)


@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        (remove_any_kind, "odd"),
        (lose_assignment, "static"),
        (reset_generation, "up_and_down"),
        (forget_sessions, "up_and_down"),
        (ignore_session_timeout, "timeouts"),
        (keep_group, "static"),
    ],
)
def test_a_transcript_reveals_a_mistake(mistake: Callable[[pytest.MonkeyPatch], None], name: str) -> None:
    recorded = (TRANSCRIPTS / f"migration_{name}.txt").read_text()
    configs = re.findall(r"^#! (\S+)=(\d+)$", recorded, re.MULTILINE)
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        broker = Harness(**{name.replace(".", "_"): int(text) for name, text in configs})
        try:
            assert transcript.run(recorded, broker) != recorded
        finally:
            broker.close()
