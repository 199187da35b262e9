"""The story of each API: what it belongs to in the matrix, and who tells it."""

from collections.abc import Callable
from typing import NamedTuple

from tests.compat.wire.play import Play
from tests.compat.wire.stories import (
    cluster,
    configs,
    features,
    fetch,
    groups,
    membership,
    produce,
    records,
    security,
    topics,
    transactional,
    transactional_offsets,
    transactions,
)


class Story(NamedTuple):
    feature: str
    tell: Callable[[Play], None]


STORIES = {
    "ApiVersions": Story("cluster", cluster.api_versions),
    "DescribeCluster": Story("cluster", cluster.describe_cluster),
    "DescribeLogDirs": Story("cluster", cluster.describe_log_dirs),
    "Produce": Story("records", produce.story),
    "Fetch": Story("records", fetch.story),
    "ListOffsets": Story("offsets", records.list_offsets),
    "OffsetForLeaderEpoch": Story("offsets", records.offset_for_leader_epoch),
    "DeleteRecords": Story("delete records", records.delete_records),
    "InitProducerId": Story("idempotence", records.init_producer_id),
    "DescribeProducers": Story("idempotence", records.describe_producers),
    "Metadata": Story("topics", topics.metadata),
    "CreateTopics": Story("topics", topics.create_topics),
    "DeleteTopics": Story("topics", topics.delete_topics),
    "CreatePartitions": Story("topics", topics.create_partitions),
    "DescribeTopicPartitions": Story("topics", topics.describe_topic_partitions),
    "DescribeConfigs": Story("configs", configs.describe_configs),
    "AlterConfigs": Story("configs", configs.alter_configs),
    "IncrementalAlterConfigs": Story("configs", configs.incremental_alter_configs),
    "ListConfigResources": Story("configs", configs.list_config_resources),
    "FindCoordinator": Story("consumer groups", groups.find_coordinator),
    "JoinGroup": Story("consumer groups", membership.join_group),
    "SyncGroup": Story("consumer groups", membership.sync_group),
    "Heartbeat": Story("consumer groups", membership.heartbeat),
    "LeaveGroup": Story("consumer groups", membership.leave_group),
    "DescribeGroups": Story("group admin", groups.describe_groups),
    "ListGroups": Story("group admin", groups.list_groups),
    "DeleteGroups": Story("group admin", groups.delete_groups),
    "OffsetCommit": Story("commits", groups.offset_commit),
    "OffsetFetch": Story("commits", transactional_offsets.offset_fetch),
    "OffsetDelete": Story("commits", groups.offset_delete),
    "AddPartitionsToTxn": Story("transactions", transactions.add_partitions),
    "AddOffsetsToTxn": Story("transactions", transactions.add_offsets),
    "EndTxn": Story("transactions", transactions.end_txn),
    "WriteTxnMarkers": Story("transactions", transactional.write_markers),
    "TxnOffsetCommit": Story("transactions", transactional_offsets.commits),
    "DescribeTransactions": Story("transactions", transactions.describe_transactions),
    "ListTransactions": Story("transactions", transactions.list_transactions),
    "UpdateFeatures": Story("cluster", features.update_features),
    "ListPartitionReassignments": Story("cluster", cluster.list_partition_reassignments),
    "DescribeQuorum": Story("cluster", cluster.describe_quorum),
    "DescribeAcls": Story("security", security.describe_acls),
    "CreateAcls": Story("security", security.create_acls),
    "DeleteAcls": Story("security", security.delete_acls),
    "DescribeClientQuotas": Story("security", security.describe_client_quotas),
    "DescribeUserScramCredentials": Story("security", security.describe_user_scram_credentials),
}
