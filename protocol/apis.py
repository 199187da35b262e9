"""The APIs of Kafka: their keys, and the versions of those that this broker supports. A few are not Kafka's."""

from enum import IntEnum
from typing import NamedTuple

# The first flexible version of an API without flexible versions; above all versions, which are int16.
NEVER = 1 << 15


class ApiKey(IntEnum):
    """The keys of all APIs of Apache Kafka 4.3, including those between brokers and controllers.

    The keys from 10,000 on are kbroker's own, far above those that Kafka may assign.
    """

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    CREATE_REASSIGNMENT_PLAN = 10000
    DESCRIBE_REASSIGNMENT_PLAN = 10001
    CANCEL_REASSIGNMENT_PLAN = 10002
    DESCRIBE_BROKER = 10003
    REMOVE_PARTITIONS = 10010
    DELAYED_RECORDS = 10011
    FORWARD_RECORDS = 10020
    DESCRIBE_REPLICA_LOGS = 10021


class Api(NamedTuple):
    """An API that this broker supports."""

    key: ApiKey
    name: str
    min_version: int  # as ApiVersions advertises it, if the API is for clients
    max_version: int
    flexible_from: int  # first version with tagged fields (KIP-482)

    @property
    def module(self) -> str:
        """The name of the API's module, in protocol.messages and in kbroker.api."""
        return f"k{self.key:02}_{self.key.name.lower()}"


# Produce 0-2 are advertised but not served, as in Kafka: without them librdkafka assumes a broker without message
# format 2. InitProducerId 6 (KIP-939) is not stable yet.
_ROWS = (
    Api(ApiKey.PRODUCE, "Produce", 0, 13, 9),
    Api(ApiKey.FETCH, "Fetch", 4, 18, 12),
    Api(ApiKey.LIST_OFFSETS, "ListOffsets", 1, 11, 6),
    Api(ApiKey.METADATA, "Metadata", 0, 13, 9),
    Api(ApiKey.OFFSET_COMMIT, "OffsetCommit", 2, 10, 8),
    Api(ApiKey.OFFSET_FETCH, "OffsetFetch", 1, 10, 6),
    Api(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 6, 3),
    Api(ApiKey.JOIN_GROUP, "JoinGroup", 0, 9, 6),
    Api(ApiKey.HEARTBEAT, "Heartbeat", 0, 4, 4),
    Api(ApiKey.LEAVE_GROUP, "LeaveGroup", 0, 5, 4),
    Api(ApiKey.SYNC_GROUP, "SyncGroup", 0, 5, 4),
    Api(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", 0, 6, 5),
    Api(ApiKey.LIST_GROUPS, "ListGroups", 0, 5, 3),
    Api(ApiKey.API_VERSIONS, "ApiVersions", 0, 4, 3),
    Api(ApiKey.CREATE_TOPICS, "CreateTopics", 2, 7, 5),
    Api(ApiKey.DELETE_TOPICS, "DeleteTopics", 1, 6, 4),
    Api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
    Api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 5, 2),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 5, 3),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 4, 3),
    Api(ApiKey.END_TXN, "EndTxn", 0, 5, 3),
    Api(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", 1, 2, 1),
    Api(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 5, 3),
    Api(ApiKey.DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2),
    Api(ApiKey.CREATE_ACLS, "CreateAcls", 1, 3, 2),
    Api(ApiKey.DELETE_ACLS, "DeleteAcls", 1, 3, 2),
    Api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
    Api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 1, 2, 2),
    Api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 1, 5, 2),
    Api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
    Api(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
    Api(ApiKey.ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 1, 0),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0),
    Api(ApiKey.OFFSET_DELETE, "OffsetDelete", 0, 0, NEVER),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 1, 1),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", 0, 0, 0),
    Api(ApiKey.DESCRIBE_QUORUM, "DescribeQuorum", 0, 2, 0),
    Api(ApiKey.UPDATE_FEATURES, "UpdateFeatures", 0, 2, 0),
    Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0),
    Api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
    Api(ApiKey.UNREGISTER_BROKER, "UnregisterBroker", 0, 0, 0),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0),
    Api(ApiKey.LIST_TRANSACTIONS, "ListTransactions", 0, 2, 0),
    Api(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResources", 0, 1, 0),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", 0, 0, 0),
)

# Served on the listener for brokers only, and not advertised to clients.
_INTER_BROKER_ROWS = (
    Api(ApiKey.ALTER_PARTITION, "AlterPartition", 3, 3, 0),
    Api(ApiKey.ENVELOPE, "Envelope", 0, 0, 0),
    Api(ApiKey.BROKER_HEARTBEAT, "BrokerHeartbeat", 0, 2, 0),
    Api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, "AssignReplicasToDirs", 0, 0, 0),
    Api(ApiKey.FORWARD_RECORDS, "ForwardRecords", 0, 0, 0),
    Api(ApiKey.DESCRIBE_REPLICA_LOGS, "DescribeReplicaLogs", 0, 0, 0),
)

# APIs that Kafka does not have, which are not advertised: only kbroker's command line sends them, in version 0.
_PRIVATE_ROWS = (
    Api(ApiKey.CREATE_REASSIGNMENT_PLAN, "CreateReassignmentPlan", 0, 0, 0),
    Api(ApiKey.DESCRIBE_REASSIGNMENT_PLAN, "DescribeReassignmentPlan", 0, 0, 0),
    Api(ApiKey.CANCEL_REASSIGNMENT_PLAN, "CancelReassignmentPlan", 0, 0, 0),
    Api(ApiKey.DESCRIBE_BROKER, "DescribeBroker", 0, 0, 0),
    Api(ApiKey.REMOVE_PARTITIONS, "RemovePartitions", 0, 0, 0),
    Api(ApiKey.DELAYED_RECORDS, "DelayedRecords", 0, 0, 0),
)

# In this order: Kafka's APIs for clients, APIs between brokers only, kbroker's own for its command line, all of these.
APIS: dict[int, Api] = {api.key: api for api in _ROWS}
INTER_BROKER_APIS: dict[int, Api] = {api.key: api for api in _INTER_BROKER_ROWS}
PRIVATE_APIS: dict[int, Api] = {api.key: api for api in _PRIVATE_ROWS}
ALL_APIS = APIS | INTER_BROKER_APIS | PRIVATE_APIS
