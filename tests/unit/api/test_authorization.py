"""The gate: what clients may do with ACLs. tests/compat/security compares all APIs with Apache Kafka."""

import asyncio
from typing import Any

import pytest

from kbroker.api.authorization_rules import RULES
from kbroker.api.dispatch import Dispatch, handler_module, load_handler
from protocol.apis import ALL_APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import ListOffsetsPartition, ListOffsetsTopic
from protocol.messages.k03_metadata import MetadataRequestTopic
from protocol.messages.k19_create_topics import CreatableTopic, CreatableTopicConfig
from protocol.messages.k20_delete_topics import DeleteTopicState
from protocol.messages.k22_transactions import AddPartitionsToTxnTopic
from protocol.messages.k32_describe_configs import DescribeConfigsResource
from protocol.messages.k44_incremental_alter_configs import AlterableConfig, AlterConfigsResource
from protocol.schema.primitives import ZERO_UUID
from tests.unit.support.client import Client
from tests.unit.support.secured_broker import ROOT, ask, login, secured, use_rules
from tests.unit.support.simulated_broker import Machine

REFUSED, UNKNOWN = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
CLUSTER, ID = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
TOPIC = 2


def codes(rows: Any) -> dict[str | None, int]:
    return {row.name: row.error_code for row in rows}


async def started(m: Machine, *topics: str) -> tuple[Client, Client]:
    """Return the clients of root and alice, after topics were created."""
    root = await login(m, ROOT)
    for topic in topics:
        await root.create_topic(topic)
    return root, await login(m, "alice")


@pytest.mark.parametrize("key", ALL_APIS)
def test_every_api_has_a_rule(key: ApiKey) -> None:
    load_handler(key, ALL_APIS[key].max_version, authorizes=True)
    assert (RULES[key] is None) is any(hasattr(handler_module(key), name) for name in ("authorize", "AUTHORIZE")) or (
        ALL_APIS[key].family
    )


def test_an_api_without_a_rule_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, ApiKey.PRODUCE)  # type: ignore[arg-type]
    dispatch = Dispatch()
    dispatch.authorizes = True
    with pytest.raises(KeyError):
        dispatch[ApiKey.PRODUCE, 9]


CLUSTER_APIS = {
    ApiKey.LIST_CONFIG_RESOURCES: "DESCRIBE_CONFIGS",
    ApiKey.DESCRIBE_LOG_DIRS: "DESCRIBE",
    ApiKey.UNREGISTER_BROKER: "ALTER",
    ApiKey.CREATE_REASSIGNMENT_PLAN: "ALTER",
    ApiKey.DESCRIBE_REASSIGNMENT_PLAN: "DESCRIBE",
    ApiKey.CANCEL_REASSIGNMENT_PLAN: "ALTER",
    ApiKey.DESCRIBE_BROKER: "DESCRIBE",
}


@secured
async def test_a_right_on_the_cluster(m: Machine) -> None:
    root, alice = await started(m)
    for key, right in CLUSTER_APIS.items():
        use_rules(m, "alice CREATE CLUSTER", f"bob {right} CLUSTER")
        assert (await ask(alice, key)).error_code == CLUSTER, key
        use_rules(m, f"alice {right} CLUSTER")
        assert (await ask(alice, key)).error_code != CLUSTER, key
        assert (await ask(root, key)).error_code != CLUSTER, key


@secured
async def test_topics_are_refused_one_by_one_whether_they_exist_or_not(m: Machine) -> None:
    _, alice = await started(m, "seen", "hidden")
    use_rules(m, "alice DESCRIBE TOPIC seen", "alice DESCRIBE TOPIC ghost")
    topics = [
        ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        for name in ("hidden", "seen", "nothere", "ghost")
    ]
    response = await ask(alice, ApiKey.LIST_OFFSETS, replica_id=-1, topics=topics)
    found = [(topic.name, topic.partitions[0].error_code) for topic in response.topics]
    assert found == [("seen", 0), ("ghost", UNKNOWN), ("hidden", REFUSED), ("nothere", REFUSED)]
    none = await ask(alice, ApiKey.LIST_OFFSETS, replica_id=-1, topics=topics[:1])
    assert [topic.partitions[0].error_code for topic in none.topics] == [REFUSED]


@secured
async def test_metadata_does_not_show_what_may_not_be_described(m: Machine) -> None:
    _, alice = await started(m, "seen", "hidden")
    image = m.broker.services.metadata
    use_rules(m, "alice DESCRIBE TOPIC seen", "alice DESCRIBE TOPIC ghost", "alice CREATE TOPIC new")

    async def metadata(*names: str) -> dict[str | None, int]:
        topics = [MetadataRequestTopic(name=name) for name in names]
        return codes((await ask(alice, ApiKey.METADATA, topics=topics, allow_auto_topic_creation=True)).topics)

    assert codes((await ask(alice, ApiKey.METADATA, topics=None)).topics) == {"seen": 0}
    assert codes((await ask(alice, ApiKey.METADATA, 0, topics=[])).topics) == {"seen": 0}
    names = ("seen", "hidden", "nothere", "ghost", "new")
    expected = dict.fromkeys(names, REFUSED) | {"seen": 0}
    assert await metadata(*names) == expected, "a topic was told apart, or could be created"
    assert set(image.topics) == {"seen", "hidden"}
    use_rules(m, "alice DESCRIBE TOPIC new", "alice CREATE TOPIC new")
    await metadata("new")
    assert "new" in image.topics
    hidden = image.topics["hidden"].topic_id
    by_id = await ask(alice, ApiKey.METADATA, topics=[MetadataRequestTopic(topic_id=hidden, name=None)])
    assert [(row.name, row.topic_id, row.error_code) for row in by_id.topics] == [(None, hidden, REFUSED)]


@secured
async def test_a_cached_response_is_only_for_the_same_rights(m: Machine) -> None:
    root, alice = await started(m, "t")
    for _ in range(3):
        assert codes((await ask(root, ApiKey.METADATA, topics=None)).topics) == {"t": 0}
        assert codes((await ask(alice, ApiKey.METADATA, topics=None)).topics) == {}
    use_rules(m, "alice READ TOPIC t")
    for _ in range(3):
        response = await ask(alice, ApiKey.METADATA, 10, topics=None, include_topic_authorized_operations=True)
        assert [(row.name, row.topic_authorized_operations) for row in response.topics] == [("t", 1 << 3 | 1 << 8)]
    use_rules(m)
    assert codes((await ask(alice, ApiKey.METADATA, topics=None)).topics) == {}


@secured
async def test_deletion_shows_a_topic_only_to_whom_may_describe_it(m: Machine) -> None:
    _, alice = await started(m, "seen", "hidden", "own")
    image = m.broker.services.metadata
    ids = {name: topic.topic_id for name, topic in image.topics.items()}
    use_rules(m, "alice DESCRIBE TOPIC seen", "alice DESCRIBE TOPIC ghost", "alice DELETE TOPIC own")
    named = [DeleteTopicState(name=name) for name in ("hidden", "nothere", "ghost")]
    by_id = [DeleteTopicState(name=None, topic_id=ids[name]) for name in ("seen", "hidden", "own")]
    response = await ask(alice, ApiKey.DELETE_TOPICS, topics=[*named, *by_id], timeout_ms=1000)
    found = sorted((row.name or "", row.topic_id, row.error_code) for row in response.responses)
    assert found == sorted(
        [
            ("hidden", ZERO_UUID, REFUSED), ("nothere", ZERO_UUID, REFUSED), ("ghost", ZERO_UUID, UNKNOWN),
            ("seen", ids["seen"], REFUSED), ("", ids["hidden"], REFUSED), ("own", ids["own"], 0),
        ]
    )  # fmt: skip
    assert set(image.topics) == {"seen", "hidden"}


def view(name: str, source: str, filter: str = "paid") -> CreatableTopic:
    configs = {"kbroker.view.of": source, "kbroker.view.filter": filter}
    rows = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
    return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, configs=rows)


@secured
async def test_a_view_needs_the_right_to_read_its_source(m: Machine) -> None:
    root, alice = await started(m, "orders")
    rights = ["alice CREATE CLUSTER", "alice ALTER_CONFIGS TOPIC view", "alice WRITE TOPIC view"]
    use_rules(m, *rights)

    async def create() -> Any:
        [row] = (await ask(alice, ApiKey.CREATE_TOPICS, topics=[view("view", "orders")], timeout_ms=1000)).topics
        return row

    async def alter(operation: int) -> int:
        config = AlterableConfig(name="kbroker.view.filter", config_operation=operation, value="*")
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name="view", configs=[config])
        [row] = (await ask(alice, ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource])).responses
        return int(row.error_code)

    async def source() -> Any:
        resource = DescribeConfigsResource(
            resource_type=TOPIC, resource_name="view", configuration_keys=["kbroker.view.of"]
        )
        [row] = (await ask(alice, ApiKey.DESCRIBE_CONFIGS, resources=[resource])).results
        return row.configs[0].value

    assert (await create()).error_code == REFUSED
    await ask(root, ApiKey.CREATE_TOPICS, topics=[view("view", "orders")], timeout_ms=1000)
    assert await source() is None
    assert [await alter(operation) for operation in (0, 1)] == [REFUSED, REFUSED]
    produced = await alice.produce("view", None)
    assert (produced.error_code, "orders" in (produced.error_message or "")) == (17, False)
    use_rules(m, *rights, "alice READ TOPIC orders")
    assert await source() == "orders"
    assert await alter(0) == 0
    await root.delete_topic("view")
    created = await create()
    assert (created.error_code, created.topic_config_error_code) == (0, 0)


@secured
async def test_the_configs_of_a_new_topic_need_a_right_of_their_own(m: Machine) -> None:
    _, alice = await started(m)
    use_rules(m, "alice CREATE TOPIC a")
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("a", "b")]
    response = await ask(alice, ApiKey.CREATE_TOPICS, topics=topics, timeout_ms=1000)
    rows = [(row.name, row.error_code, row.topic_config_error_code, row.num_partitions) for row in response.topics]
    assert rows == [("a", 0, REFUSED, -1), ("b", REFUSED, 0, -1)]
    assert set(m.broker.services.metadata.topics) == {"a"}


@secured
async def test_transactions(m: Machine) -> None:
    root, alice = await started(m, "t", "hidden")

    async def init(transactional_id: str | None) -> Any:
        fields = {"transactional_id": transactional_id, "transaction_timeout_ms": 60_000}
        return await ask(alice, ApiKey.INIT_PRODUCER_ID, **fields)

    assert [(await init(None)).error_code, (await init("id")).error_code] == [CLUSTER, ID]
    use_rules(m, "alice WRITE TOPIC t")
    assert (await init(None)).error_code == 0
    use_rules(m, "alice WRITE TOPIC t", "alice WRITE TRANSACTIONAL_ID id")
    while (await ask(root, ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=["id"])).coordinators[0].error_code:
        await asyncio.sleep(0.1)
    while (producer := await init("id")).error_code:
        await asyncio.sleep(0.1)

    async def add(*topics: str) -> dict[str | None, int]:
        response = await ask(
            alice,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id="id",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in topics],
        )
        rows = response.results_by_topic_v3_and_below
        return {row.name: row.results_by_partition[0].partition_error_code for row in rows}

    assert await add("t", "hidden") == {"t": ErrorCode.OPERATION_NOT_ATTEMPTED, "hidden": REFUSED}
    assert await add("t") == {"t": 0}
    assert (await ask(alice, ApiKey.ADD_PARTITIONS_TO_TXN, 5)).error_code == CLUSTER, "that is for brokers"
    described = (await ask(alice, ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["id", "other"])).transaction_states
    assert [(row.error_code, [topic.topic for topic in row.topics]) for row in described] == [(0, ["t"]), (ID, [])]
    use_rules(m, "alice DESCRIBE TRANSACTIONAL_ID id")
    [described] = (await ask(alice, ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["id"])).transaction_states
    assert described.topics == []
    for client, ids in ((root, ["id"]), (alice, ["id"]), (await login(m, "bob"), [])):
        listed = (await ask(client, ApiKey.LIST_TRANSACTIONS)).transaction_states
        assert [row.transactional_id for row in listed] == ids
    ended = {"transactional_id": "id", "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    assert (await ask(alice, ApiKey.END_TXN, 3, committed=True, **ended)).error_code == ID


@pytest.mark.parametrize(
    ("key", "fields", "right"),
    [
        (ApiKey.REMOVE_PARTITIONS, {"partition_count": 1}, "ALTER"),
        (ApiKey.REMOVE_PARTITIONS, {"partition_count": -1}, "DESCRIBE"),
        (ApiKey.DELAYED_RECORDS, {"operation": 0, "max_records": 0}, "DESCRIBE"),
        (ApiKey.DELAYED_RECORDS, {"operation": 0, "max_records": 1}, "READ"),
        (ApiKey.DELAYED_RECORDS, {"operation": 1, "offsets": [0]}, "DELETE"),
        (ApiKey.DELAYED_RECORDS, {"operation": 2, "offsets": [0]}, "WRITE"),
    ],
)
def test_the_apis_of_kbroker(key: ApiKey, fields: dict[str, Any], right: str) -> None:
    @secured
    async def story(m: Machine) -> None:
        _, alice = await started(m, "t")
        others = {"READ", "WRITE", "ALTER", "DELETE", "DESCRIBE"} - {right}
        use_rules(m, *(f"alice {each} TOPIC t" for each in others if right != "DESCRIBE"), f"alice {right} TOPIC u")
        assert (await ask(alice, key, topic_name="t", **fields)).error_code == REFUSED
        use_rules(m, f"alice {right} TOPIC t")
        assert (await ask(alice, key, topic_name="t", **fields)).error_code != REFUSED

    story()
