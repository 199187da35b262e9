"""Which replica leads after the metadata were older than the logs, and when it is known."""

from dataclasses import replace

import pytest

from kbroker.metadata.image import PartitionRegistration, SeenMetadata
from kbroker.metadata.recovery.log_recovery import MAX_UNSEEN_EPOCHS, ReadLogs, ReplicaLog, begin_recovery, recover
from kbroker.metadata.replication.partition_change import Election, TopicRules, change_partition
from kbroker.metadata.store.znodes import decode_partition, partition_fields

OLD = PartitionRegistration(leader=1, leader_epoch=5, replicas=[1, 2, 3], isr=[1], elr=[2], partition_epoch=9)
WAITING = begin_recovery(OLD, [SeenMetadata(leader_epoch=7)])
ALL = (1, 2, 3, 4)
A, B, C = ReplicaLog(5, 100, 0), ReplicaLog(7, 90, 0), ReplicaLog(7, 95, 0)


def leader(logs: dict[int, ReplicaLog | None], min_isr: int = 2, **values: object) -> int | None:
    read = ReadLogs(logs, ALL, **values)  # type: ignore[arg-type]
    found = recover(WAITING, read, set(logs), min_isr)
    return None if found is None else found.leader


def test_nobody_leads_until_the_logs_are_compared() -> None:
    assert (WAITING.leader, WAITING.isr, WAITING.elr, WAITING.is_recovering) == (-1, [], [], True)
    assert WAITING.leader_epoch == 7 + MAX_UNSEEN_EPOCHS
    assert decode_partition(*partition_fields(WAITING)) == WAITING  # type: ignore[arg-type]
    for election in Election:
        assert change_partition(WAITING, lambda _: True, TopicRules(election, 1), isr=[1]) is None


def test_the_best_log_leads_in_an_epoch_that_nobody_has_seen() -> None:
    read = ReadLogs({1: A, 2: B, 3: C, 4: None}, ALL)
    found = recover(WAITING, read, ALL, 2)
    assert found is not None
    assert (found.leader, found.isr, found.replicas, found.last_known_elr) == (3, [3], [1, 2, 3], [])
    assert found.leader_epoch == WAITING.leader_epoch + 1
    # A higher epoch counts more than a longer log; of equal logs the first replica leads.
    assert leader({1: A, 2: B, 3: None, 4: None}) == 2
    assert leader({1: B, 2: A, 3: B, 4: None}) == 1


def test_a_broker_that_is_no_replica_may_have_the_best_log() -> None:
    found = recover(WAITING, ReadLogs({1: A, 2: None, 3: A, 4: B}, ALL), ALL, 2)
    assert found is not None
    assert (found.leader, found.replicas, found.isr) == (4, [1, 2, 3, 4], [4])
    assert leader({1: A, 2: A, 3: None, 4: A}) == 1


@pytest.mark.parametrize(
    ("logs", "min_isr", "is_complete", "expected"),
    [
        # All brokers are waited for first.
        ({1: A, 2: B}, 2, False, None),
        ({1: A, 2: B}, 2, True, 2),
        # The two that have acknowledged with min.insync.replicas=2 may be others.
        ({1: A}, 2, True, None),
        ({1: A, 2: B}, 1, True, None),
        ({1: A, 2: B, 3: C}, 1, True, 3),
        # A replica without a log: the partition was moved.
        ({1: A, 2: None}, 2, True, None),
        ({1: A, 2: None, 3: None, 4: None}, 2, False, 1),
        # No broker has a log: it was never written to.
        ({1: None, 2: None, 3: None, 4: None}, 2, False, 1),
        # More is required than there are replicas.
        ({1: A}, 5, True, 1),
        ({}, 2, True, None),
    ],
)
def test_committed_records_are_on_one_of_the_logs(
    logs: dict[int, ReplicaLog | None], min_isr: int, is_complete: bool, expected: int | None
) -> None:
    assert leader(logs, min_isr, is_complete=is_complete) == expected


def test_an_operator_may_decide_without_the_other_logs() -> None:
    assert leader({1: A}, is_forced=True) == 1
    assert leader({}, is_forced=True) is None


def test_a_broker_that_may_not_lead_is_not_elected() -> None:
    found = recover(WAITING, ReadLogs({1: A, 2: B, 3: C, 4: None}, ALL), {1, 2}, 2)
    assert found is not None
    assert found.leader == 2


def test_a_reassignment_does_not_elect() -> None:
    from kbroker.metadata.replication.partition_change import Assignment

    changed = change_partition(WAITING, lambda _: True, TopicRules(), assignment=Assignment([4, 2, 3, 1], [4], [1]))
    assert changed == replace(
        WAITING, replicas=[4, 2, 3, 1], adding_replicas=[4], removing_replicas=[1],
        partition_epoch=WAITING.partition_epoch + 1,
    )  # fmt: skip
