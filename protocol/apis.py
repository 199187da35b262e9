"""The APIs of Kafka: their keys, and the versions of those that this broker supports. A few are not Kafka's."""

from enum import IntEnum
from typing import NamedTuple

# The first flexible version of an API without flexible versions; above all versions, which are int16.
NEVER = 1 << 15


class ApiKey(IntEnum):
    """The keys of all APIs of Apache Kafka 4.4, including those between brokers and controllers.

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
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94
    CREATE_REASSIGNMENT_PLAN = 10000
    DESCRIBE_REASSIGNMENT_PLAN = 10001
    CANCEL_REASSIGNMENT_PLAN = 10002
    DESCRIBE_BROKER = 10003
    REMOVE_PARTITIONS = 10010
    DELAYED_RECORDS = 10011
    FORWARD_RECORDS = 10020
    DESCRIBE_REPLICA_LOGS = 10021


class Api(NamedTuple):
    """An API that this broker supports. What only its handler needs to know is in the handler's file.

    min_version: the first version that ApiVersions advertises, if the API is for clients.
    flexible_from: the first version with tagged fields (KIP-482).
    served_from: the first version that is served, if that is not `min_version`.
    brokers_from: the first version that brokers send to each other, None if they do not.
    family: the module of an API that shares it with others.
    """

    key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int
    served_from: int = 0
    brokers_from: int | None = None
    family: str = ""

    @property
    def name(self) -> str:
        """The name as in Kafka's message definitions."""
        return self.key.name.title().replace("_", "")

    @property
    def module(self) -> str:
        """The name of the API's module, in protocol.messages and in kbroker.api."""
        return self.family or f"k{self.key:02}_{self.key.name.lower()}"

    def serves(self, version: int) -> bool:
        return max(self.min_version, self.served_from) <= version <= self.max_version


# Produce 0-2 are advertised but not served, as in Kafka: without them librdkafka does not compress, since it assumes a
# broker without message format 2; such a request closes the connection like one of an unknown version.
# InitProducerId 6 (KIP-939) is not stable yet. No broker sends older versions of Fetch and AddPartitionsToTxn.
_ROWS = (
    Api(ApiKey.PRODUCE, 0, 13, 9, served_from=3, brokers_from=13),
    Api(ApiKey.FETCH, 4, 18, 12, brokers_from=17),
    Api(ApiKey.LIST_OFFSETS, 1, 11, 6, brokers_from=1),
    Api(ApiKey.METADATA, 0, 13, 9),
    Api(ApiKey.OFFSET_COMMIT, 2, 10, 8, family="k08_offset_commits"),
    Api(ApiKey.OFFSET_FETCH, 1, 10, 6),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, 3),
    Api(ApiKey.JOIN_GROUP, 0, 9, 6, family="k11_classic_groups"),
    Api(ApiKey.HEARTBEAT, 0, 4, 4, family="k11_classic_groups"),
    Api(ApiKey.LEAVE_GROUP, 0, 5, 4, family="k11_classic_groups"),
    Api(ApiKey.SYNC_GROUP, 0, 5, 4, family="k11_classic_groups"),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5, family="k15_groups"),
    Api(ApiKey.LIST_GROUPS, 0, 5, 3, family="k15_groups"),
    Api(ApiKey.SASL_HANDSHAKE, 0, 1, NEVER, family="k17_sasl"),
    Api(ApiKey.API_VERSIONS, 0, 5, 3),
    Api(ApiKey.CREATE_TOPICS, 2, 7, 5),
    Api(ApiKey.DELETE_TOPICS, 1, 6, 4),
    Api(ApiKey.DELETE_RECORDS, 0, 2, 2),
    Api(ApiKey.INIT_PRODUCER_ID, 0, 5, 2, family="k22_transactions"),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4),
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3, brokers_from=4, family="k22_transactions"),
    Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, family="k22_transactions"),
    Api(ApiKey.END_TXN, 0, 5, 3, family="k22_transactions"),
    Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1, brokers_from=1),
    Api(ApiKey.TXN_OFFSET_COMMIT, 0, 6, 3, family="k08_offset_commits"),
    Api(ApiKey.DESCRIBE_ACLS, 1, 3, 2, family="k29_acls"),
    Api(ApiKey.CREATE_ACLS, 1, 3, 2, family="k29_acls"),
    Api(ApiKey.DELETE_ACLS, 1, 3, 2, family="k29_acls"),
    Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, 2),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, 2),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, 2, brokers_from=5),
    Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2, family="k17_sasl"),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, 2),
    Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, 2, family="k38_delegation_tokens"),
    Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, 2, family="k38_delegation_tokens"),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, 2, family="k38_delegation_tokens"),
    Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, 2, family="k38_delegation_tokens"),
    Api(ApiKey.DELETE_GROUPS, 0, 3, 2),
    Api(ApiKey.ELECT_LEADERS, 0, 2, 2),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1),
    Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0, family="k45_partition_reassignments"),
    Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0, family="k45_partition_reassignments"),
    Api(ApiKey.OFFSET_DELETE, 0, 0, NEVER),
    Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1),
    Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1),
    Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0, family="k50_scram_credentials"),
    Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0, family="k50_scram_credentials"),
    Api(ApiKey.DESCRIBE_QUORUM, 0, 2, 0),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, 0),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0),
    Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0),
    Api(ApiKey.UNREGISTER_BROKER, 0, 0, 0),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0),
    Api(ApiKey.LIST_TRANSACTIONS, 0, 2, 0),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0, family="k68_consumer_groups"),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0, family="k68_consumer_groups"),
    Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, 0, family="k71_client_telemetry"),
    Api(ApiKey.PUSH_TELEMETRY, 0, 0, 0, family="k71_client_telemetry"),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0),
    Api(ApiKey.SHARE_FETCH, 1, 2, 0, family="k78_share_fetch"),
    Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, 0, family="k78_share_fetch"),
    Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 0, family="k76_share_groups"),
    Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, 0, family="k76_share_groups"),
    Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, 0, family="k88_streams_groups"),
    Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 1, 0, family="k88_streams_groups"),
    Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, 0, family="k90_share_group_offsets"),
    Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, 0, family="k90_share_group_offsets"),
    Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, 0, family="k90_share_group_offsets"),
    Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, 0, brokers_from=0, family="k83_share_state"),
    Api(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, 0, brokers_from=0, family="k83_share_state"),
    Api(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, 0, brokers_from=1, family="k83_share_state"),
    Api(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, 0, brokers_from=0, family="k83_share_state"),
    Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, 0, brokers_from=1, family="k83_share_state"),
)

# Served on the listener for brokers only, and not advertised to clients.
_INTER_BROKER_ROWS = (
    Api(ApiKey.ALTER_PARTITION, 3, 3, 0, brokers_from=3),
    Api(ApiKey.ENVELOPE, 0, 0, 0, brokers_from=0),
    Api(ApiKey.BROKER_HEARTBEAT, 0, 2, 0, brokers_from=0),
    Api(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, 0, 0, brokers_from=0),
    Api(ApiKey.FORWARD_RECORDS, 0, 0, 0, brokers_from=0),
    Api(ApiKey.DESCRIBE_REPLICA_LOGS, 0, 0, 0, brokers_from=0),
)

# APIs that Kafka does not have, which are not advertised: only kbroker's command line sends them, in version 0.
_PRIVATE_ROWS = (
    Api(ApiKey.CREATE_REASSIGNMENT_PLAN, 0, 0, 0, family="k10000_reassignment_plans"),
    Api(ApiKey.DESCRIBE_REASSIGNMENT_PLAN, 0, 0, 0, family="k10000_reassignment_plans"),
    Api(ApiKey.CANCEL_REASSIGNMENT_PLAN, 0, 0, 0, family="k10000_reassignment_plans"),
    Api(ApiKey.DESCRIBE_BROKER, 0, 0, 0),
    Api(ApiKey.REMOVE_PARTITIONS, 0, 0, 0),
    Api(ApiKey.DELAYED_RECORDS, 0, 0, 0),
)

# In this order: Kafka's APIs for clients, APIs between brokers only, kbroker's own for its command line, all of these.
APIS: dict[int, Api] = {api.key: api for api in _ROWS}
INTER_BROKER_APIS: dict[int, Api] = {api.key: api for api in _INTER_BROKER_ROWS}
PRIVATE_APIS: dict[int, Api] = {api.key: api for api in _PRIVATE_ROWS}
ALL_APIS = APIS | INTER_BROKER_APIS | PRIVATE_APIS

# By listener.
CLIENT_LISTENER_APIS = APIS | PRIVATE_APIS
BROKER_LISTENER_APIS = {
    key: api._replace(min_version=api.brokers_from) for key, api in ALL_APIS.items() if api.brokers_from is not None
}
