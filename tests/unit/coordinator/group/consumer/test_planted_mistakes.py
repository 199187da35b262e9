"""The random stories of consumer groups find mistakes that are planted in the coordinator."""

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.consumer import heartbeat, membership
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember
from kbroker.coordinator.group.consumer.consumer_groups import ConsumerGroups
from kbroker.coordinator.group.consumer.heartbeat import MemberHeartbeat
from kbroker.coordinator.group.modern import subscribed_topics
from kbroker.coordinator.group.modern.modern_group import ModernGroup
from protocol.errors import ErrorCode
from tests.unit.coordinator.group.consumer.test_random_consumer_groups import run

# The maximum number of seeds to try, from one on that finds the mistake.
SEEDS = 40
Plant = Callable[[pytest.MonkeyPatch], None]


def a_join_does_not_bump_the_group_epoch(patch: pytest.MonkeyPatch) -> None:
    original = MemberHeartbeat._next_group_epoch
    patch.setattr(
        MemberHeartbeat, "_next_group_epoch", lambda self, member, must_bump: original(self, member, must_bump=False)
    )


def a_partition_is_assigned_while_pending_revocation_elsewhere(patch: pytest.MonkeyPatch) -> None:
    def is_free_for(group: ConsumerGroup, member_id: str, topic_id: bytes, partition: int) -> bool:
        return not any(
            partition in member.assigned.get(topic_id, {})
            for member in group.members.values()
            if member.member_id != member_id
        )

    patch.setattr(ConsumerGroup, "is_free_for", is_free_for)


def a_pending_partition_that_returns_to_its_member_loses_its_owner(patch: pytest.MonkeyPatch) -> None:
    def put_member(group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        old = group.members.get(member.member_id)
        ModernGroup.put_member(group, member)
        group._count_choices(old, member)
        group._own(member)
        if old is not None:
            group._disown(old)

    patch.setattr(ConsumerGroup, "put_member", put_member)


def the_previous_epoch_is_accepted_without_the_subset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "_is_subset", lambda owned, assigned: True)


def a_fenced_member_cannot_join_again(patch: pytest.MonkeyPatch) -> None:
    original = membership.find_member

    def find_member(
        group: ConsumerGroup, member_id: str, instance_id: str | None, epoch: int, owned: Any, *, is_classic: bool
    ) -> ConsumerGroupMember:
        if epoch == 0 and member_id in group.members:
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH)
        return original(group, member_id, instance_id, epoch, owned, is_classic=is_classic)

    patch.setattr(heartbeat, "find_member", find_member)


def load_starts_no_revocation_deadlines(patch: pytest.MonkeyPatch) -> None:
    def on_loaded(groups: ConsumerGroups, group: ConsumerGroup) -> None:
        for member_id in group.members:
            groups.start_session(group, member_id)

    patch.setattr(ConsumerGroups, "on_loaded", on_loaded)


def a_commit_below_the_assignment_epoch_is_accepted(patch: pytest.MonkeyPatch) -> None:
    original = ConsumerGroup.assignment_epoch_of
    patch.setattr(ConsumerGroup, "assignment_epoch_of", lambda *key: None if original(*key) is None else 0)


def a_commit_of_a_partition_of_another_member_is_accepted(patch: pytest.MonkeyPatch) -> None:
    def validate(group: ConsumerGroup, member: ConsumerGroupMember, epoch: int, *_: Any) -> None:
        if epoch > member.epoch:
            raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    patch.setattr(ConsumerGroup, "_validate_epoch_of_commit", validate)


def a_recreated_topic_keeps_its_assignment(patch: pytest.MonkeyPatch) -> None:
    original = subscribed_topics.topic_hash
    patch.setattr(subscribed_topics, "topic_hash", lambda topic_id, name, racks: original(bytes(16), name, racks))


def the_assignment_epoch_of_an_empty_group_stays_behind(patch: pytest.MonkeyPatch) -> None:
    original = membership.remove_members

    def remove_members(*arguments: Any) -> list[Any]:
        return [record for record in original(*arguments) if type(record).__name__ != "TargetEpoch"]

    patch.setattr("kbroker.coordinator.group.consumer.classic_members.remove_members", remove_members)


# With the seed at which the search begins, to save time.
MISTAKES: dict[Plant, int] = {
    a_join_does_not_bump_the_group_epoch: 0,
    a_partition_is_assigned_while_pending_revocation_elsewhere: 0,
    a_pending_partition_that_returns_to_its_member_loses_its_owner: 0,
    the_previous_epoch_is_accepted_without_the_subset: 5,
    a_fenced_member_cannot_join_again: 0,
    load_starts_no_revocation_deadlines: 26,
    a_commit_below_the_assignment_epoch_is_accepted: 0,
    a_commit_of_a_partition_of_another_member_is_accepted: 0,
    a_recreated_topic_keeps_its_assignment: 25,
    the_assignment_epoch_of_an_empty_group_stays_behind: 0,
}


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_the_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MISTAKES[plant], MISTAKES[plant] + SEEDS):
        try:
            run(seed)
        except (AssertionError, KeyError):
            return
    pytest.fail(f"none of {SEEDS} seeds finds it")
