"""Plans of CreatePartitions, against the errors of a single-node Apache Kafka 4.3.1.

The table was recorded with CreatePartitions version 3 and broker 1 alone.
"""

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.topics.create_topics import NewPartitions, plan_partitions
from protocol.errors import ErrorCode
from tests.unit.support.topic_planning import planning_context

REJECTED_PARTITIONS = [
    (NewPartitions("t1", 6), 37, "Topic already has 6 partition(s)."),
    (NewPartitions("t2", 2, [[1]]), 37, "Topic already has 2 partition(s)."),
    (NewPartitions("t1", 2), 37, "The topic t1 currently has 6 partition(s); 2 would not be an increase."),
    (NewPartitions("t1", -1), 37, "The topic t1 currently has 6 partition(s); -1 would not be an increase."),
    (NewPartitions("nope", 2), 3, None),
    (NewPartitions("a b", 2), 3, None),
    (NewPartitions("", 2), 3, None),
    (NewPartitions("t2", 4, [[1]]), 39,
     "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified."),
    (NewPartitions("t2", 3, [[1], [1]]), 39,
     "Attempted to add 1 additional partition(s), but only 2 assignment(s) were specified."),
    (NewPartitions("t2", 3, []), 39,
     "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified."),
    (NewPartitions("t2", 3, [[9]]), 39,
     "The manual partition assignment includes broker 9, but no such broker is registered."),
    (NewPartitions("t2", 3, [[1, 9]]), 39,
     "The manual partition assignment includes broker 9, but no such broker is registered."),
    (NewPartitions("t2", 3, [[]]), 39, "The manual partition assignment includes an empty replica list."),
    (NewPartitions("t2", 3, [[1, 1]]), 39,
     "The manual partition assignment includes the broker 1 more than once."),
    # Kafka 4.3.1: UNKNOWN_SERVER_ERROR.
    (NewPartitions("t2", 10_003), 44, "Excessively large number of partitions per request."),
]  # fmt: skip


@pytest.mark.parametrize(("new", "code", "message"), REJECTED_PARTITIONS)
def test_rejected_partitions(new: NewPartitions, code: int, message: str | None):
    with pytest.raises(KafkaError) as raised:
        plan_partitions(new, planning_context())
    assert (raised.value.code, raised.value.message) == (code, message)


def test_valid_partitions():
    assert plan_partitions(NewPartitions("t1", 8), planning_context()) == [[1], [1]]
    assert plan_partitions(NewPartitions("t2", 3, [[1]]), planning_context()) == [[1]]


def test_a_new_partition_needs_a_broker_that_can_lead_it():
    context = planning_context({1: None, 2: None}, fenced=[2])
    with pytest.raises(KafkaError, match="assignment for partition 3 are fenced or in controlled shutdown") as raised:
        plan_partitions(NewPartitions("t2", 4, [[1], [2]]), context)
    assert raised.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_the_error_codes_of_the_table_are_known():
    assert {code for _, code, _ in REJECTED_PARTITIONS} <= set(ErrorCode)
