"""The rule of each API: what its clients must be allowed, as in Kafka (the gate: authorization.py).

A broker does not start with an API that has no rule. IN_HANDLER: the file of the API checks by itself, where only a
part of a response depends on rights, or for speed; OWN: the file has a function `authorize`, or a dict AUTHORIZE of
them. The rules of APIs between brokers, which clients cannot reach, are a second lock.
"""

from collections.abc import Mapping
from types import ModuleType

from kbroker.api.authorization import DEFAULT_TEXT, Rule, all_of, anybody, cluster, each, every, listed, may, one
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.coordinator.group.streams.requests import topic_names
from protocol.apis import ALL_APIS, ApiKey

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, CLUSTER_ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID

NONE = IN_HANDLER = anybody
OWN: Rule | None = None
BROKERS = cluster(CLUSTER_ACTION)
READ_GROUP, DELETE_GROUP = one(READ, GROUP, "group_id"), one(DELETE, GROUP, "group_id")
WRITE_TRANSACTIONS = one(WRITE, TRANSACTIONAL_ID, "transactional_id")
READ_TOPICS = each("topics", may(READ, TOPIC, "name", id_field="topic_id"))
READ_SHARED = each("topics", may(READ, TOPIC, "topic_name", DEFAULT_TEXT), handles_none=True)
DESCRIBE_SUBSCRIBED = every(lambda request: request.subscribed_topic_names or (), may(DESCRIBE, TOPIC))
DESCRIBE_TOPOLOGY = every(lambda request: topic_names(request.topology), may(DESCRIBE, TOPIC))

# fmt: off
RULES: Mapping[ApiKey, Rule | None] = {
    # Records.
    ApiKey.PRODUCE: OWN,
    ApiKey.FETCH: IN_HANDLER,
    ApiKey.LIST_OFFSETS: each("topics", may(DESCRIBE, TOPIC, "name")),
    ApiKey.DELETE_RECORDS: each("topics", may(DELETE, TOPIC, "name")),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: each("topics", may(DESCRIBE, TOPIC, "topic", on_cluster=CLUSTER_ACTION)),
    ApiKey.DESCRIBE_PRODUCERS: OWN,
    ApiKey.DELAYED_RECORDS: OWN,
    # Connections and brokers.
    ApiKey.API_VERSIONS: NONE,
    ApiKey.SASL_HANDSHAKE: NONE,
    ApiKey.SASL_AUTHENTICATE: NONE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: NONE,
    ApiKey.PUSH_TELEMETRY: NONE,
    ApiKey.METADATA: IN_HANDLER,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: IN_HANDLER,
    ApiKey.DESCRIBE_CLUSTER: IN_HANDLER,
    ApiKey.DESCRIBE_BROKER: cluster(DESCRIBE),
    ApiKey.DESCRIBE_LOG_DIRS: cluster(DESCRIBE),
    ApiKey.ALTER_REPLICA_LOG_DIRS: cluster(ALTER),
    ApiKey.DESCRIBE_QUORUM: cluster(DESCRIBE),
    ApiKey.UNREGISTER_BROKER: cluster(ALTER),
    ApiKey.UPDATE_FEATURES: cluster(ALTER),
    # Topics, partitions and configs.
    ApiKey.CREATE_TOPICS: OWN,
    ApiKey.DELETE_TOPICS: OWN,
    ApiKey.CREATE_PARTITIONS: each("topics", may(ALTER, TOPIC, "name")),
    ApiKey.REMOVE_PARTITIONS: OWN,
    ApiKey.DESCRIBE_CONFIGS: OWN,
    ApiKey.ALTER_CONFIGS: OWN,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: OWN,
    ApiKey.LIST_CONFIG_RESOURCES: cluster(DESCRIBE_CONFIGS),
    ApiKey.ELECT_LEADERS: cluster(ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster(ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster(DESCRIBE),
    ApiKey.CREATE_REASSIGNMENT_PLAN: cluster(ALTER),
    ApiKey.DESCRIBE_REASSIGNMENT_PLAN: cluster(DESCRIBE),
    ApiKey.CANCEL_REASSIGNMENT_PLAN: cluster(ALTER),
    # Users, tokens, ACLs and quotas.
    ApiKey.CREATE_DELEGATION_TOKEN: NONE,
    ApiKey.RENEW_DELEGATION_TOKEN: NONE,
    ApiKey.EXPIRE_DELEGATION_TOKEN: NONE,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: NONE,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster(DESCRIBE, has_text=False),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: cluster(ALTER),
    ApiKey.DESCRIBE_ACLS: cluster(DESCRIBE),
    ApiKey.CREATE_ACLS: cluster(ALTER),
    ApiKey.DELETE_ACLS: cluster(ALTER),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster(DESCRIBE_CONFIGS, has_text=False),
    ApiKey.ALTER_CLIENT_QUOTAS: cluster(ALTER_CONFIGS),
    # Transactions.
    ApiKey.INIT_PRODUCER_ID: OWN,
    ApiKey.ADD_PARTITIONS_TO_TXN: OWN,
    ApiKey.END_TXN: WRITE_TRANSACTIONS,
    ApiKey.WRITE_TXN_MARKERS: cluster(ALTER, CLUSTER_ACTION),
    ApiKey.DESCRIBE_TRANSACTIONS: IN_HANDLER,
    ApiKey.LIST_TRANSACTIONS: listed("transaction_states", DESCRIBE, TRANSACTIONAL_ID, "transactional_id"),
    # Groups.
    ApiKey.JOIN_GROUP: READ_GROUP,
    ApiKey.SYNC_GROUP: READ_GROUP,
    ApiKey.HEARTBEAT: READ_GROUP,
    ApiKey.LEAVE_GROUP: READ_GROUP,
    ApiKey.OFFSET_COMMIT: all_of(READ_GROUP, READ_TOPICS),
    ApiKey.OFFSET_FETCH: IN_HANDLER,
    ApiKey.OFFSET_DELETE: all_of(DELETE_GROUP, each("topics", may(READ, TOPIC, "name"), handles_none=True)),
    ApiKey.TXN_OFFSET_COMMIT: all_of(WRITE_TRANSACTIONS, READ_GROUP, READ_TOPICS),
    ApiKey.ADD_OFFSETS_TO_TXN: all_of(WRITE_TRANSACTIONS, READ_GROUP),
    ApiKey.FIND_COORDINATOR: IN_HANDLER,
    ApiKey.DESCRIBE_GROUPS: IN_HANDLER,
    ApiKey.LIST_GROUPS: listed("groups", DESCRIBE, GROUP, "group_id", on_cluster=DESCRIBE),
    ApiKey.DELETE_GROUPS: IN_HANDLER,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: all_of(READ_GROUP, DESCRIBE_SUBSCRIBED),
    ApiKey.CONSUMER_GROUP_DESCRIBE: IN_HANDLER,
    ApiKey.SHARE_GROUP_HEARTBEAT: all_of(READ_GROUP, DESCRIBE_SUBSCRIBED),
    ApiKey.SHARE_GROUP_DESCRIBE: IN_HANDLER,
    ApiKey.SHARE_FETCH: READ_GROUP,
    ApiKey.SHARE_ACKNOWLEDGE: READ_GROUP,
    ApiKey.STREAMS_GROUP_HEARTBEAT: all_of(READ_GROUP, DESCRIBE_TOPOLOGY),
    ApiKey.STREAMS_GROUP_DESCRIBE: IN_HANDLER,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: IN_HANDLER,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: all_of(one(READ, GROUP, "group_id", DEFAULT_TEXT), READ_SHARED),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: all_of(one(DELETE, GROUP, "group_id", DEFAULT_TEXT), READ_SHARED),
    # Between brokers.
    ApiKey.ALTER_PARTITION: BROKERS,
    ApiKey.ENVELOPE: BROKERS,
    ApiKey.BROKER_HEARTBEAT: BROKERS,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: BROKERS,
    ApiKey.FORWARD_RECORDS: BROKERS,
    ApiKey.DESCRIBE_REPLICA_LOGS: BROKERS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: BROKERS,
    ApiKey.READ_SHARE_GROUP_STATE: BROKERS,
    ApiKey.WRITE_SHARE_GROUP_STATE: BROKERS,
    ApiKey.DELETE_SHARE_GROUP_STATE: BROKERS,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: BROKERS,
}
# fmt: on

missing = [api.name for key, api in ALL_APIS.items() if key not in RULES]
if missing:
    raise RuntimeError(f"APIs without a rule: {missing}")


def rule_of(key: ApiKey, module: ModuleType) -> Rule:
    """Return the rule of an API. `module`: its handler's file."""
    rule = RULES[key]
    if rule is not None:
        return rule
    own: Rule = module.AUTHORIZE[key] if ALL_APIS[key].family else module.authorize
    return own
