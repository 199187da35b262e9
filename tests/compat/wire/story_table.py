"""The story of each API, and the feature of the test matrix that it belongs to."""

from collections.abc import Callable
from typing import NamedTuple

from tests.compat.wire.stories import (
    cluster,
    configs,
    features,
    fetch,
    groups,
    membership,
    produce,
    reassignments,
    records,
    security,
    topics,
    transactional,
    transactional_offsets,
    transactions,
)
from tests.compat.wire.story import Story


class StoryEntry(NamedTuple):
    feature: str
    run: Callable[[Story], None]


STORIES = {
    "ApiVersions": StoryEntry("cluster", cluster.api_versions),
    "DescribeCluster": StoryEntry("cluster", cluster.describe_cluster),
    "DescribeLogDirs": StoryEntry("cluster", cluster.describe_log_dirs),
    "Produce": StoryEntry("records", produce.story),
    "Fetch": StoryEntry("records", fetch.story),
    "ListOffsets": StoryEntry("offsets", records.list_offsets),
    "OffsetForLeaderEpoch": StoryEntry("offsets", records.offset_for_leader_epoch),
    "DeleteRecords": StoryEntry("delete records", records.delete_records),
    "InitProducerId": StoryEntry("idempotence", records.init_producer_id),
    "DescribeProducers": StoryEntry("idempotence", records.describe_producers),
    "Metadata": StoryEntry("topics", topics.metadata),
    "CreateTopics": StoryEntry("topics", topics.create_topics),
    "DeleteTopics": StoryEntry("topics", topics.delete_topics),
    "CreatePartitions": StoryEntry("topics", topics.create_partitions),
    "DescribeTopicPartitions": StoryEntry("topics", topics.describe_topic_partitions),
    "DescribeConfigs": StoryEntry("configs", configs.describe_configs),
    "AlterConfigs": StoryEntry("configs", configs.alter_configs),
    "IncrementalAlterConfigs": StoryEntry("configs", configs.incremental_alter_configs),
    "ListConfigResources": StoryEntry("configs", configs.list_config_resources),
    "FindCoordinator": StoryEntry("consumer groups", groups.find_coordinator),
    "JoinGroup": StoryEntry("consumer groups", membership.join_group),
    "SyncGroup": StoryEntry("consumer groups", membership.sync_group),
    "Heartbeat": StoryEntry("consumer groups", membership.heartbeat),
    "LeaveGroup": StoryEntry("consumer groups", membership.leave_group),
    "DescribeGroups": StoryEntry("group admin", groups.describe_groups),
    "ListGroups": StoryEntry("group admin", groups.list_groups),
    "DeleteGroups": StoryEntry("group admin", groups.delete_groups),
    "OffsetCommit": StoryEntry("commits", groups.offset_commit),
    "OffsetFetch": StoryEntry("commits", transactional_offsets.offset_fetch),
    "OffsetDelete": StoryEntry("commits", groups.offset_delete),
    "AddPartitionsToTxn": StoryEntry("transactions", transactions.add_partitions),
    "AddOffsetsToTxn": StoryEntry("transactions", transactions.add_offsets),
    "EndTxn": StoryEntry("transactions", transactions.end_txn),
    "WriteTxnMarkers": StoryEntry("transactions", transactional.write_markers),
    "TxnOffsetCommit": StoryEntry("transactions", transactional_offsets.txn_offset_commit),
    "DescribeTransactions": StoryEntry("transactions", transactions.describe_transactions),
    "ListTransactions": StoryEntry("transactions", transactions.list_transactions),
    "UpdateFeatures": StoryEntry("cluster", features.update_features),
    "AlterPartitionReassignments": StoryEntry("cluster", reassignments.alter_partition_reassignments),
    "UnregisterBroker": StoryEntry("cluster", reassignments.unregister_broker),
    "AlterReplicaLogDirs": StoryEntry("cluster", reassignments.alter_replica_log_dirs),
    "ListPartitionReassignments": StoryEntry("cluster", cluster.list_partition_reassignments),
    "ElectLeaders": StoryEntry("cluster", cluster.elect_leaders),
    "DescribeQuorum": StoryEntry("cluster", cluster.describe_quorum),
    "DescribeAcls": StoryEntry("security", security.describe_acls),
    "CreateAcls": StoryEntry("security", security.create_acls),
    "DeleteAcls": StoryEntry("security", security.delete_acls),
    "DescribeClientQuotas": StoryEntry("security", security.describe_client_quotas),
    "DescribeUserScramCredentials": StoryEntry("security", security.describe_user_scram_credentials),
}
