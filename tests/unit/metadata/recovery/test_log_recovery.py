"""Whether the metadata lack what a broker has seen, and which replica leads then, as decisions."""

from dataclasses import replace

import pytest

from kbroker.metadata.image import NOTHING_SEEN, PartitionRegistration, SeenMetadata
from kbroker.metadata.recovery.log_recovery import (
    MAX_UNSEEN_EPOCHS,
    ReadLogs,
    ReplicaLog,
    begin_recovery,
    diverges,
    needs_recovery,
    recover,
)
from kbroker.metadata.replication.partition_change import Election, TopicRules, change_partition
from kbroker.metadata.store.change_log import ChangeLog, Writer, decode_change_log, encode_change_log
from kbroker.metadata.store.znodes import decode_partition, partition_fields

A, B, C = Writer(1, "a", 0, 1), Writer(2, "b", 50, 51), Writer(3, "c", 80, 81)
# The copy ends with change 60, and a controller that does not know of the lost ones has written 61 to 90.
FORKED = ChangeLog(90, None, (A, B, Writer(3, "d", 60, 61)))
# The copy ends with change 60. A recovery has begun with change 1,000.
RECOVERED = ChangeLog(1_005, None, (A, B, Writer(3, "d", 60, 1_000)))


def seen(number: int, writer: Writer) -> SeenMetadata:
    return SeenMetadata(number, writer.epoch, writer.name)


@pytest.mark.parametrize(
    ("was_seen", "log", "expected"),
    [
        (NOTHING_SEEN, ChangeLog(7, None, (A,)), False),
        (seen(7, A), ChangeLog(7, None, (A,)), False),
        # Lost changes of a controller that the copy knows, or does not know.
        (seen(8, A), ChangeLog(7, None, (A,)), True),
        (seen(85, C), ChangeLog(60, None, (A, B)), True),
        # The numbers are in use again, for other changes.
        (seen(60, B), FORKED, False),
        (seen(61, B), FORKED, True),
        (seen(85, C), FORKED, True),
        (seen(90, FORKED.writers[-1]), FORKED, False),
        # Nothing is known of the writers.
        (SeenMetadata(7), ChangeLog(9), False),
        (seen(7, C), ChangeLog(9), False),
        (seen(7, C), ChangeLog(90, None, (Writer(5, "e", 20, 21),)), False),
        (SeenMetadata(10), ChangeLog(9), True),
    ],
)  # fmt: skip
def test_changes_that_the_metadata_lack(was_seen: SeenMetadata, log: ChangeLog, expected: bool) -> None:
    assert diverges(was_seen, log) is expected
    assert needs_recovery(was_seen, log) is expected


@pytest.mark.parametrize(
    ("was_seen", "is_other_history", "is_new"),
    [
        (seen(60, B), False, False),
        # A broker that was away during the recovery.
        (seen(85, C), True, False),
        (seen(1_003, RECOVERED.writers[-1]), False, False),
        # A second restore, to a copy from before or after the first recovery.
        (seen(2_000, Writer(4, "e", 1_010, 1_011)), True, True),
    ],
)
def test_a_recovery_accounts_for_all_changes_before_it(
    was_seen: SeenMetadata, is_other_history: bool, is_new: bool
) -> None:
    assert diverges(was_seen, RECOVERED) is is_other_history
    assert needs_recovery(was_seen, RECOVERED) is is_new


def test_the_change_log_keeps_its_writers() -> None:
    assert decode_change_log(encode_change_log(FORKED)) == FORKED
    # Versions before this one do not write them.
    assert decode_change_log(b'{"number":7,"recent":[]}') == ChangeLog(7)


OLD = PartitionRegistration(leader=1, leader_epoch=5, replicas=[1, 2, 3], isr=[1], elr=[2], partition_epoch=9)
WAITING = begin_recovery(OLD, [SeenMetadata(leader_epoch=7)])
ALL = (1, 2, 3, 4)
SHORT, LONG, LONGEST = ReplicaLog(5, 100, 0), ReplicaLog(7, 90, 0), ReplicaLog(7, 95, 0)


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
    read = ReadLogs({1: SHORT, 2: LONG, 3: LONGEST, 4: None}, ALL)
    found = recover(WAITING, read, ALL, 2)
    assert found is not None
    assert (found.leader, found.isr, found.replicas, found.last_known_elr) == (3, [3], [1, 2, 3], [])
    assert found.leader_epoch == WAITING.leader_epoch + 1
    # A higher epoch counts more than a longer log; of equal logs the first replica leads.
    assert leader({1: SHORT, 2: LONG, 3: None, 4: None}) == 2
    assert leader({1: LONG, 2: SHORT, 3: LONG, 4: None}) == 1


def test_a_broker_that_is_no_replica_may_have_the_best_log() -> None:
    found = recover(WAITING, ReadLogs({1: SHORT, 2: None, 3: SHORT, 4: LONG}, ALL), ALL, 2)
    assert found is not None
    assert (found.leader, found.replicas, found.isr) == (4, [1, 2, 3, 4], [4])
    assert leader({1: SHORT, 2: SHORT, 3: None, 4: SHORT}) == 1


@pytest.mark.parametrize(
    ("logs", "min_isr", "is_complete", "expected"),
    [
        # All brokers are waited for first.
        ({1: SHORT, 2: LONG}, 2, False, None),
        ({1: SHORT, 2: LONG}, 2, True, 2),
        # The two that have acknowledged with min.insync.replicas=2 may be others.
        ({1: SHORT}, 2, True, None),
        ({1: SHORT, 2: LONG}, 1, True, None),
        ({1: SHORT, 2: LONG, 3: LONGEST}, 1, True, 3),
        # A replica without a log: the partition was moved.
        ({1: SHORT, 2: None}, 2, True, None),
        ({1: SHORT, 2: None, 3: None, 4: None}, 2, False, 1),
        # No broker has a log: it was never written to.
        ({1: None, 2: None, 3: None, 4: None}, 2, False, 1),
        # More is required than there are replicas.
        ({1: SHORT}, 5, True, 1),
        ({}, 2, True, None),
    ],
)
def test_committed_records_are_on_one_of_the_logs(
    logs: dict[int, ReplicaLog | None], min_isr: int, is_complete: bool, expected: int | None
) -> None:
    assert leader(logs, min_isr, is_complete=is_complete) == expected


def test_an_operator_may_decide_without_the_other_logs() -> None:
    assert leader({1: SHORT}, is_forced=True) == 1
    assert leader({}, is_forced=True) is None


def test_a_broker_that_may_not_lead_is_not_elected() -> None:
    found = recover(WAITING, ReadLogs({1: SHORT, 2: LONG, 3: LONGEST, 4: None}, ALL), {1, 2}, 2)
    assert found is not None
    assert found.leader == 2


def test_a_reassignment_does_not_elect() -> None:
    from kbroker.metadata.replication.partition_change import Assignment

    changed = change_partition(WAITING, lambda _: True, TopicRules(), assignment=Assignment([4, 2, 3, 1], [4], [1]))
    assert changed == replace(
        WAITING, replicas=[4, 2, 3, 1], adding_replicas=[4], removing_replicas=[1],
        partition_epoch=WAITING.partition_epoch + 1,
    )  # fmt: skip
