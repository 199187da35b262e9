"""The cluster: brokers, configs, quotas, users, ACLs, features, reassignments, telemetry."""

from typing import Any

from tests.compat.security.authorization.case import Case, of_api
from tests.compat.security.authorization.rows.topics import KNOWN

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
RESOURCES = [
    (TOPIC, "in.t", "retention.ms", "1000"),
    (TOPIC, "out.t", "retention.ms", "1000"),
    (TOPIC, "in.missing", "retention.ms", "1000"),
    (TOPIC, "out.missing", "retention.ms", "1000"),
    (GROUP, "in.g", "consumer.session.timeout.ms", "45000"),
    (GROUP, "out.g", "consumer.session.timeout.ms", "45000"),
    (BROKER, "", "log.retention.ms", "100000"),
    (CLIENT_METRICS, "in.m", "interval.ms", "1000"),
]
ACL = {
    "resource_type": 2, "resource_name": "none", "resource_pattern_type": 3, "principal": "User:nobody", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
FILTER = {
    "resource_type_filter": 1, "pattern_type_filter": 1, "principal_filter": "User:nobody else", "operation": 1,
    "permission_type": 1,
}  # fmt: skip


@of_api("ApiVersions")
def api_versions(case: Case) -> None:
    case.record_only("api_keys", "18")
    case.record_only("supported_features")
    case.record_only("finalized_features")
    case.request("all", client_software_name="wire", client_software_version="1")


@of_api("SaslHandshake")
def sasl_handshake(case: Case) -> None:
    """After a login."""
    case.request("again", mechanism="PLAIN")


@of_api("SaslAuthenticate")
def sasl_authenticate(case: Case) -> None:
    """After a login."""
    case.request("again", auth_bytes=b"\0super\0secret")


@of_api("DescribeCluster", "DESCRIBE cluster")
def describe_cluster(case: Case) -> None:
    case.request("the cluster")
    case.request("operations", include_cluster_authorized_operations=True)


@of_api("DescribeAcls", "DESCRIBE cluster")
def describe_acls(case: Case) -> None:
    case.request("some", **FILTER)


@of_api("CreateAcls", "ALTER cluster")
def create_acls(case: Case) -> None:
    case.request("one", creations=[ACL])
    case.request("one, and an invalid one", creations=[ACL, ACL | {"principal": ""}])


@of_api("DeleteAcls", "ALTER cluster")
def delete_acls(case: Case) -> None:
    case.request("none", filters=[FILTER])


@of_api("DescribeConfigs", "DESCRIBE_CONFIGS topic", "DESCRIBE_CONFIGS group", "DESCRIBE_CONFIGS cluster")
def describe_configs(case: Case) -> None:
    rows = [
        {"resource_type": kind, "resource_name": resource, "configuration_keys": [name]}
        for kind, resource, name, _ in RESOURCES
    ]
    case.request("resources", resources=rows)
    for title, kind in {"a broker": BROKER, "a broker's loggers": BROKER_LOGGER}.items():
        row = {
            "resource_type": kind,
            "resource_name": str(case.world.node[0]),
            "configuration_keys": ["message.max.bytes"],
        }
        case.request(title, resources=[row])


@of_api("AlterConfigs", "ALTER_CONFIGS topic", "ALTER_CONFIGS group", "ALTER_CONFIGS cluster")
def alter_configs(case: Case) -> None:
    rows = [
        {"resource_type": kind, "resource_name": resource, "configs": [{"name": name, "value": value}]}
        for kind, resource, name, value in RESOURCES
    ]
    for row in rows:
        title = f"{row['resource_type']} {row['resource_name']}"
        case.request(title, resources=[row], validate_only=True)


@of_api("IncrementalAlterConfigs", "ALTER_CONFIGS topic", "ALTER_CONFIGS group", "ALTER_CONFIGS cluster")
def incremental_alter_configs(case: Case) -> None:
    rows: list[dict[str, Any]] = []
    for kind, resource, name, value in RESOURCES:
        config = {"name": name, "config_operation": 0, "value": value}
        rows.append({"resource_type": kind, "resource_name": resource, "configs": [config]})
    case.request("resources", resources=rows, validate_only=True)


@of_api("ListConfigResources", "DESCRIBE_CONFIGS cluster")
def list_config_resources(case: Case) -> None:
    case.record_only("config_resources", "in.t", "out.t")
    case.request("topics", resource_types=[TOPIC])


@of_api("AlterReplicaLogDirs", "ALTER cluster")
def alter_replica_log_dirs(case: Case) -> None:
    topics = [{"name": KNOWN, "partitions": [0]}]
    case.request("an unknown directory", dirs=[{"path": "/unknown", "topics": topics}])


@of_api("DescribeLogDirs", "DESCRIBE cluster")
def describe_log_dirs(case: Case) -> None:
    case.request("a topic", topics=[{"topic": KNOWN, "partitions": [0]}])


@of_api("ElectLeaders", "ALTER cluster")
def elect_leaders(case: Case) -> None:
    row = {"topic": KNOWN, "partitions": [0]}
    case.request("a partition", election_type=0, topic_partitions=[row], timeout=10_000)


@of_api("AlterPartitionReassignments", "ALTER cluster")
def alter_partition_reassignments(case: Case) -> None:
    rows = [
        {"name": topic, "partitions": [{"partition_index": 0, "replicas": None}]} for topic in (KNOWN, "in.missing")
    ]
    case.request("cancel", topics=rows, timeout=10_000)


@of_api("ListPartitionReassignments", "DESCRIBE cluster")
def list_partition_reassignments(case: Case) -> None:
    case.request("all", topics=None, timeout=10_000)


@of_api("DescribeClientQuotas", "DESCRIBE_CONFIGS cluster")
def describe_client_quotas(case: Case) -> None:
    case.request("a user", components=[{"entity_type": "user", "match_type": 0, "match": "nobody"}], strict=False)


@of_api("AlterClientQuotas", "ALTER_CONFIGS cluster")
def alter_client_quotas(case: Case) -> None:
    entity = [{"entity_type": "user", "entity_name": "nobody"}]
    ops = [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]
    case.request("a user", entries=[{"entity": entity, "ops": ops}], validate_only=True)


@of_api("DescribeUserScramCredentials", "DESCRIBE cluster")
def describe_user_scram_credentials(case: Case) -> None:
    """With null, for all users, a client without the right gets no response from Kafka."""
    case.request("a user", users=[{"name": "nobody"}])


@of_api("AlterUserScramCredentials", "ALTER cluster")
def alter_user_scram_credentials(case: Case) -> None:
    case.request("an unknown user", deletions=[{"name": "nobody", "mechanism": 1}], upsertions=[])


@of_api("DescribeQuorum", "DESCRIBE cluster")
def describe_quorum(case: Case) -> None:
    case.mask("high_watermark", "log_end_offset", "leader_epoch", "port")
    case.record_only("listeners")
    case.request("the quorum", topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}])


@of_api("UpdateFeatures", "ALTER cluster")
def update_features(case: Case) -> None:
    row = {"feature": "unknown", "max_version_level": 1, "upgrade_type": 1}
    case.request("an unknown feature", feature_updates=[row], timeout=10_000)
    case.request("none", feature_updates=[], timeout=10_000)


@of_api("UnregisterBroker", "ALTER cluster")
def unregister_broker(case: Case) -> None:
    case.request("an unknown broker", broker_id=77)


@of_api("GetTelemetrySubscriptions")
def get_telemetry_subscriptions(case: Case) -> None:
    case.mask("subscription_id")
    case.request("a client", client_instance_id=case.fresh_uuid())


@of_api("PushTelemetry")
def push_telemetry(case: Case) -> None:
    fields = {"subscription_id": 1, "terminating": False, "compression_type": 0, "metrics": b""}
    case.request("an unknown client", client_instance_id=case.fresh_uuid(), **fields)


HMAC = {"hmac": b"hmac", "renew_period": 1000, "expiry_time_period": 1000}


@of_api("CreateDelegationToken")
def create_delegation_token(case: Case) -> None:
    case.request("a token", renewers=[], max_lifetime=1000)


@of_api("RenewDelegationToken")
def renew_delegation_token(case: Case) -> None:
    case.request("a token", **HMAC)


@of_api("ExpireDelegationToken")
def expire_delegation_token(case: Case) -> None:
    case.request("a token", **HMAC)


@of_api("DescribeDelegationToken")
def describe_delegation_token(case: Case) -> None:
    case.request("all", owners=None)


@of_api("AlterPartition")
def alter_partition(case: Case) -> None:
    """Clients may not send what brokers send to each other."""
    case.request("no client's", topics=[])


@of_api("Envelope")
def envelope(case: Case) -> None:
    case.request("no client's")


@of_api("BrokerHeartbeat")
def broker_heartbeat(case: Case) -> None:
    case.request("no client's", broker_id=1)


@of_api("AssignReplicasToDirs")
def assign_replicas_to_dirs(case: Case) -> None:
    case.request("no client's", broker_id=1, directories=[])
