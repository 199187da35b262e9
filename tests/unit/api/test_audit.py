"""The log and the audit log say what a request has changed, and who has sent it."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.api.audit import CHANGES, auditing
from kbroker.api.dispatch import is_forwarded
from kbroker.config.config_def import ConfigResourceType
from protocol.apis import ALL_APIS, ApiKey
from protocol.messages.k03_metadata import MetadataRequestTopic
from protocol.messages.k19_create_topics import CreatableTopic
from protocol.messages.k20_delete_topics import DeleteTopicState
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.messages.k29_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)
from protocol.messages.k37_create_partitions import CreatePartitionsTopic
from protocol.messages.k44_incremental_alter_configs import AlterableConfig, AlterConfigsResource
from protocol.messages.k48_describe_client_quotas import EntityData
from protocol.messages.k49_alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    EntryResult,
    OpData,
)
from protocol.messages.k50_scram_credentials import ScramCredentialDeletion, ScramCredentialUpsertion
from protocol.messages.k90_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from protocol.messages.k10011_delayed_records import (
    DelayedRecordResult,
    DelayedRecordsRequest,
    DelayedRecordsResponse,
)
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers

SENDER = {"principal": "User:ANONYMOUS", "host": "127.0.0.1"}


class Recorder:
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []
        self.is_automatic = False

    def record(self, event: str, **fields: object) -> None:
        assert fields.items() >= SENDER.items()
        # Topics that a client only asks for are created without its id, as in Kafka.
        assert fields.pop("client", None) == (None if self.is_automatic else "client")
        self.events.append({name: value for name, value in fields.items() if name not in SENDER} | {"event": event})

    def changes(self) -> list[tuple[object, object, object]]:
        """Return (api, resource, change) of the changes since the last call."""
        events, self.events = self.events, []
        assert all(event["event"] == "changed" for event in events)
        return [(event["api"], event["resource"], event["change"]) for event in events]


async def start() -> tuple[Handlers, Recorder]:
    handlers, recorder = await start_handlers(), Recorder()
    handlers.services.audit = recorder
    return handlers, recorder


def new_topic(name: str, partitions: int = 2) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)


@async_test
async def test_the_life_of_a_topic():
    handlers, recorder = await start()
    await handlers.request(ApiKey.CREATE_TOPICS, 7, topics=[new_topic("a"), new_topic("in/valid")])
    assert recorder.changes() == [("CreateTopics", "TOPIC:a", "created with 2 partitions")]
    topic = CreatePartitionsTopic(name="a", count=3, assignments=None)
    await handlers.request(ApiKey.CREATE_PARTITIONS, 3, topics=[topic])
    assert recorder.changes() == [("CreatePartitions", "TOPIC:a", "partitions added")]
    await handlers.request(ApiKey.DELETE_TOPICS, 6, topics=[DeleteTopicState(name="a"), DeleteTopicState(name="b")])
    assert recorder.changes() == [("DeleteTopics", "TOPIC:a", "deleted")]


@async_test
async def test_a_request_that_only_validates_changes_nothing():
    handlers, recorder = await start()
    await handlers.request(ApiKey.CREATE_TOPICS, 7, topics=[new_topic("a")], validate_only=True)
    assert recorder.changes() == []


@async_test
async def test_a_topic_that_exists_because_a_client_has_asked_for_it():
    handlers, recorder = await start()
    handlers.services.auto_topic_creation.audit, recorder.is_automatic = recorder, True
    wanted = [MetadataRequestTopic(name="a")]
    for _ in range(2):
        await handlers.request(ApiKey.METADATA, 12, topics=wanted, allow_auto_topic_creation=True)
    assert recorder.changes() == [("CreateTopics", "TOPIC:a", "created with 4 partitions")]


@async_test
async def test_values_of_a_brokers_configs_may_be_passwords():
    handlers, recorder = await start()
    await handlers.request(ApiKey.CREATE_TOPICS, 7, topics=[new_topic("a")])
    recorder.changes()

    def resource(kind: ConfigResourceType, name: str, *configs: tuple[str, int, str | None]) -> AlterConfigsResource:
        alterable = [AlterableConfig(name=name, config_operation=op, value=value) for name, op, value in configs]
        return AlterConfigsResource(resource_type=kind, resource_name=name, configs=alterable)

    resources = [
        resource(ConfigResourceType.TOPIC, "a", ("retention.ms", 0, "1000"), ("retention.bytes", 1, "a secret")),
        resource(ConfigResourceType.BROKER, "1", ("message.max.bytes", 0, "1000000")),
        resource(ConfigResourceType.TOPIC, "b", ("retention.ms", 0, "1000")),
    ]
    await handlers.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources)
    assert recorder.changes() == [
        ("IncrementalAlterConfigs", "TOPIC:a", "retention.ms=1000, retention.bytes deleted"),
        ("IncrementalAlterConfigs", "BROKER:1", "message.max.bytes set"),
    ]


@async_test
async def test_users_without_their_keys():
    handlers, recorder = await start()
    key = ScramCredentialUpsertion(
        name="alice", mechanism=2, iterations=8192, salt=b"salty salt", salted_password=b"p" * 64
    )
    await handlers.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=[key])
    assert recorder.changes() == [("AlterUserScramCredentials", "USER:alice", "SCRAM credentials set")]
    deletions = [ScramCredentialDeletion(name=name, mechanism=2) for name in ("alice", "bob")]
    await handlers.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions)
    assert recorder.changes() == [("AlterUserScramCredentials", "USER:alice", "SCRAM credentials deleted")]


def test_acls():
    creation = AclCreation(
        resource_type=2, resource_name="app-", resource_pattern_type=4, principal="User:alice", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    results = CreateAclsResponse(results=[AclCreationResult(error_code=42), AclCreationResult()])
    created = CHANGES[ApiKey.CREATE_ACLS](CreateAclsRequest(creations=[creation, creation]), results)
    assert list(created) == [("TOPIC:app-*", "ACL created: ALLOW READ to User:alice from *")]
    match = DeleteAclsMatchingAcl(
        resource_type=3, resource_name="g", pattern_type=3, principal="User:bob", host="10.0.0.7", operation=2,
        permission_type=2,
    )  # fmt: skip
    response = DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(matching_acls=[match])])
    deleted = CHANGES[ApiKey.DELETE_ACLS](None, response)
    assert list(deleted) == [("GROUP:g", "ACL deleted: DENY ALL to User:bob from 10.0.0.7")]


def test_quotas():
    entity = [EntityData(entity_type="user", entity_name=None), EntityData(entity_type="client-id", entity_name="app")]
    ops = [OpData(key="producer_byte_rate", value=1e6), OpData(key="consumer_byte_rate", remove=True)]
    request = AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=ops)] * 2)
    response = AlterClientQuotasResponse(
        entries=[EntryResult(entity=entity), EntryResult(entity=entity, error_code=42)]
    )
    change = "producer_byte_rate=1000000, consumer_byte_rate deleted"
    altered = CHANGES[ApiKey.ALTER_CLIENT_QUOTAS](request, response)
    assert list(altered) == [("QUOTA:user=<default>,client-id=app", change)]


def test_group_offsets_transactions_and_delayed_records():
    offsets = AlterShareGroupOffsetsResponseTopic(
        topic_name="t",
        partitions=[
            AlterShareGroupOffsetsResponsePartition(partition_index=0),
            AlterShareGroupOffsetsResponsePartition(partition_index=1, error_code=42),
        ],
    )
    altered = CHANGES[ApiKey.ALTER_SHARE_GROUP_OFFSETS](
        AlterShareGroupOffsetsRequest(group_id="g"), AlterShareGroupOffsetsResponse(responses=[offsets])
    )
    assert list(altered) == [("GROUP:g", "start offset of t-0 set")]
    deleted = CHANGES[ApiKey.DELETE_SHARE_GROUP_OFFSETS](
        DeleteShareGroupOffsetsRequest(group_id="g"),
        DeleteShareGroupOffsetsResponse(responses=[DeleteShareGroupOffsetsResponseTopic(topic_name="t")]),
    )
    assert list(deleted) == [("GROUP:g", "offsets of t deleted")]
    marker = WritableTxnMarkerTopicResult(name="t", partitions=[WritableTxnMarkerPartitionResult(partition_index=2)])
    ended = CHANGES[ApiKey.WRITE_TXN_MARKERS](
        WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=7, transaction_result=False)]),
        WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=[marker])]),
    )
    assert list(ended) == [("TOPIC:t", "transaction of producer 7 in partition 2 aborted")]
    cancelled = DelayedRecordsResponse(results=[DelayedRecordResult(offset=1), DelayedRecordResult(error_code=42)])
    request = DelayedRecordsRequest(topic_name="t", partition_index=3, operation=1)
    changes = CHANGES[ApiKey.DELAYED_RECORDS]
    assert list(changes(request, cancelled)) == [("TOPIC:t", "1 delayed records of partition 3 cancelled")]
    assert list(changes(DelayedRecordsRequest(topic_name="t", operation=0), DelayedRecordsResponse())) == []


@pytest.mark.parametrize(("peer_broker", "recorded"), [(None, 1), ((2, 7), 0)])
def test_only_markers_of_clients_are_changes(peer_broker: tuple[int, int] | None, recorded: int):
    marker = WritableTxnMarkerTopicResult(name="t", partitions=[WritableTxnMarkerPartitionResult(partition_index=2)])
    response = WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=7, topics=[marker])])
    handle = auditing(ApiKey.WRITE_TXN_MARKERS, lambda services, context, request: response)
    recorder, requester = Recorder(), ("User:ANONYMOUS", "127.0.0.1")
    context = SimpleNamespace(
        peer_broker=peer_broker, api_key=ApiKey.WRITE_TXN_MARKERS, client_id="client", requester=requester
    )
    request = WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=7, transaction_result=True)])
    services: Any = SimpleNamespace(audit=recorder)
    assert handle(services, context, request) is response
    assert len(recorder.changes()) == recorded


@async_test
async def test_the_log_has_each_change_without_an_audit_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "kbroker.changes")
    handlers = await start_handlers()
    await handlers.request(ApiKey.CREATE_TOPICS, 7, topics=[new_topic(f"t{number}") for number in range(25)])
    lines = [str(record.msg) for record in caplog.records]
    who = "principal=User:ANONYMOUS host=127.0.0.1 client=client api=CreateTopics"
    assert lines[0] == f'changed resource=TOPIC:t0 change="created with 2 partitions" {who}'
    assert lines[20:] == [f'"more changes by the same request" count=5 {who}'.replace('"', "")]


def test_every_api_that_changes_something_is_recorded():
    # All its replicas are in one directory; tokens are not supported; brokers send the others.
    nothing = {ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN}
    nothing |= {ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.ALTER_PARTITION, ApiKey.DELETE_SHARE_GROUP_STATE}
    verbs = ("ALTER", "CREATE", "DELETE", "REMOVE", "RENEW", "EXPIRE", "UPDATE", "UNREGISTER", "CANCEL", "ELECT")
    named = {key for key in ALL_APIS if key.name.startswith(verbs) or "ALTER" in key.name or "DELETE" in key.name}
    assert named - nothing <= set(CHANGES)


def test_every_api_that_changes_the_cluster_is_recorded():
    reading = {ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_REASSIGNMENT_PLAN, ApiKey.LIST_PARTITION_REASSIGNMENTS}
    assert {key for key in ALL_APIS if is_forwarded(key)} - reading <= set(CHANGES)
