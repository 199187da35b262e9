"""Large requests of each API: the response is the same as without turns, and every loop over the elements pauses."""

import asyncio
from typing import Any

import pytest

from kbroker.runtime.turns import TURN_ELEMENTS
from protocol.messages import message_classes
from protocol.messages.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k11_classic_groups import LeaveGroupRequest, MemberIdentity
from protocol.messages.k15_groups import DescribeGroupsRequest
from protocol.messages.k19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from protocol.messages.k21_delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from protocol.messages.k22_transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from protocol.messages.k32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.messages.k33_alter_configs import AlterConfigsRequest, AlterConfigsResource
from protocol.messages.k34_alter_replica_log_dirs import AlterReplicaLogDir, AlterReplicaLogDirsRequest
from protocol.messages.k35_describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from protocol.messages.k37_create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from protocol.messages.k43_elect_leaders import ElectLeadersRequest, TopicPartitions
from protocol.messages.k44_incremental_alter_configs import AlterConfigsResource as IncrementallyAltered
from protocol.messages.k44_incremental_alter_configs import IncrementalAlterConfigsRequest
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from protocol.messages.k50_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from protocol.messages.k55_describe_quorum import DescribeQuorumRequest
from protocol.messages.k55_describe_quorum import TopicRequest as QuorumTopic
from protocol.messages.k61_describe_producers import DescribeProducersRequest, TopicRequest
from protocol.messages.k65_describe_transactions import DescribeTransactionsRequest
from protocol.messages.k66_list_transactions import ListTransactionsRequest
from protocol.messages.k75_describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
)
from protocol.messages.k75_describe_topic_partitions import TopicRequest as DescribedTopic
from protocol.messages.k10000_reassignment_plans import CreateReassignmentPlanRequest, PlannedMove
from protocol.schema.message import Message, message_info
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.turns import count_turns

COUNT = 24 * TURN_ELEMENTS
# The topic has 10 partitions; the others are unknown, and one is repeated.
INDEXES = [*range(COUNT - 1), 5]
NAMES = ["t", *(f"n{index}" for index in range(COUNT - 2)), "n7"]

# (request, version, how often the handler and the report of errors go over the elements)
REQUESTS: list[tuple[Message, int, int]] = [
    (ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[
        ListOffsetsPartition(partition_index=index, timestamp=-1) for index in INDEXES])]), 7, 3),
    (MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES],
                     allow_auto_topic_creation=False), 9, 3),
    (MetadataRequest(topics=[MetadataRequestTopic(topic_id=index.to_bytes(16, "big"), name=None)
                             for index in range(COUNT)], allow_auto_topic_creation=False), 12, 2),
    (MetadataRequest(topics=[MetadataRequestTopic(topic_id=bytes(16), name=None) for _ in NAMES]), 12, 2),
    (OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[
        OffsetCommitRequestTopic(name="t", partitions=[
            OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in INDEXES])]), 8, 2),
    (OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=INDEXES)]), 5, 3),
    (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[
        OffsetFetchRequestTopics(name="t", partition_indexes=INDEXES)])]), 8, 2),
    (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[
        OffsetFetchRequestTopics(topic_id=b"x" * 16, partition_indexes=INDEXES)])]), 10, 2),
    (OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=[]) for name in NAMES]), 8, 2),
    (FindCoordinatorRequest(coordinator_keys=NAMES), 4, 2),
    (FindCoordinatorRequest(key_type=9, coordinator_keys=NAMES), 4, 2),
    (DescribeGroupsRequest(groups=NAMES), 5, 2),
    (DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in NAMES[1:]]), 6, 5),
    (DeleteTopicsRequest(topic_names=NAMES[1:]), 5, 5),
    (DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[
        DeleteRecordsPartition(partition_index=index, offset=0) for index in INDEXES])]), 2, 3),
    (OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[
        OffsetForLeaderPartition(partition=index) for index in INDEXES])]), 3, 2),
    (AddPartitionsToTxnRequest(v3_and_below_transactional_id="x", v3_and_below_topics=[
        AddPartitionsToTxnTopic(name="t", partitions=INDEXES)]), 3, 2),
    (WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=7, topics=[
        WritableTxnMarkerTopic(name="u", partition_indexes=INDEXES)])]), 1, 4),
    (TxnOffsetCommitRequest(transactional_id="x", group_id="g", topics=[
        TxnOffsetCommitRequestTopic(name="u", partitions=[
            TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in INDEXES])]), 3, 2),
    (DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name=name)
                                       for name in NAMES]), 4, 2),
    (DeleteGroupsRequest(groups_names=NAMES), 2, 2),
    (DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in NAMES]), 0, 3),
    (DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=INDEXES)]), 0, 2),
    (OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=[
        OffsetDeleteRequestPartition(partition_index=index) for index in INDEXES])]), 0, 1),
    (DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=INDEXES)]), 2, 2),
    (DescribeTransactionsRequest(transactional_ids=NAMES), 0, 2),
    (DescribeTopicPartitionsRequest(topics=[DescribedTopic(name=name) for name in NAMES]), 0, 2),
    # Many topics with few partitions, or none.
    (OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[
        OffsetCommitRequestTopic(name=name) for name in NAMES]), 8, 2),
    (OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name=name) for name in NAMES]), 5, 4),
    (DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name) for name in NAMES]), 2, 3),
    (AddPartitionsToTxnRequest(transactions=[
        AddPartitionsToTxnTransaction(transactional_id=name) for name in NAMES]), 5, 1),
    (WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=index) for index in range(COUNT)]), 1, 1),
    (TxnOffsetCommitRequest(transactional_id="x", group_id="g", topics=[
        TxnOffsetCommitRequestTopic(name=name) for name in NAMES]), 3, 2),
    (OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name=name) for name in NAMES]), 0, 1),
    (DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=name) for name in NAMES]), 2, 1),
    (AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=name) for name in NAMES]), 2, 1),
    # Conversions before and after the decisions of the controller and of the coordinators.
    (CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=0) for name in NAMES]), 7, 7),
    (CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name) for name in NAMES]), 3, 5),
    (AlterConfigsRequest(resources=[
        AlterConfigsResource(resource_type=2, resource_name=name) for name in NAMES]), 2, 5),
    (IncrementalAlterConfigsRequest(resources=[
        IncrementallyAltered(resource_type=2, resource_name=name) for name in NAMES]), 1, 5),
    (ElectLeadersRequest(topic_partitions=[
        TopicPartitions(topic=name, partitions=[0]) for name in NAMES[:COUNT // 2]]), 2, 3),
    (AlterPartitionReassignmentsRequest(topics=[
        ReassignableTopic(name=name, partitions=[ReassignablePartition()]) for name in NAMES[:COUNT // 2]]), 1, 3),
    (CreateTopicsRequest(topics=[CreatableTopic(name="c", configs=[
        CreatableTopicConfig(name=name, value="1") for name in NAMES])]), 7, 1),
    (ListPartitionReassignmentsRequest(topics=[ListPartitionReassignmentsTopics(name=name) for name in NAMES]), 0, 1),
    (LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=name) for name in NAMES]), 5, 2),
    (DescribeQuorumRequest(topics=[QuorumTopic(topic_name=name) for name in NAMES]), 2, 2),
    (ListTransactionsRequest(state_filters=NAMES), 2, 1),
    (CreateReassignmentPlanRequest(max_concurrent_moves=1, moves=[
        PlannedMove(topic_name=name) for name in NAMES]), 0, 1),
]  # fmt: skip


@broker_test
@pytest.mark.parametrize(
    ("request_", "version", "passes"), REQUESTS, ids=[f"{type(row[0]).__name__}-{row[1]}" for row in REQUESTS]
)
async def test_responses(
    m: Machine, monkeypatch: pytest.MonkeyPatch, request_: Message, version: int, passes: int
) -> None:
    client = await m.client()
    await client.create_topic("t", partitions=10)
    for key_type in (0, 1):
        request = FindCoordinatorRequest(key="g", key_type=key_type)
        await client.request(request, 2, FindCoordinatorResponse)
    # All partitions of the coordinators are loaded.
    await asyncio.sleep(1)
    turns = count_turns(monkeypatch)
    response_class: Any = message_classes(message_info(type(request_)).key)[1]
    response = await client.request(request_, version, response_class)
    assert turns() >= passes * (COUNT - 20) // TURN_ELEMENTS
    with monkeypatch.context() as patch:
        for limit in ("server.connection.LARGE_REQUEST_BYTES", "api.dispatch.MAX_ELEMENTS_AT_ONCE",
                      "runtime.turns.TURN_ELEMENTS"):  # fmt: skip
            patch.setattr(f"kbroker.{limit}", 1 << 30)
        before = turns()
        assert await client.request(request_, version, response_class) == response
        assert turns() < before + 20
