"""Configs that are altered while the broker runs take effect at once, and are kept across restarts."""

import asyncio
import threading

import pytest

from kbroker.config import BrokerConfig
from kbroker.config.alter import MIN_ISR
from kbroker.config.config_def import READ_ONLY, ConfigKey, ConfigResourceType
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.values import ConfigError, Value
from kbroker.replica.logs.log_manager import LOGS_PER_JOB
from kbroker.runtime.system import ThreadPool
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.k19_create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import HOST, HOUR, PORT, Machine, broker_test

SAMPLES = ("true", "false", "compact", "lz4", "LogAppendTime", "full", "3", "5", "0.25", "0.75", "2000000", "3000000")


def two_other_values(key: ConfigKey) -> list[str]:
    """Return two values that are not the default."""
    texts_by_value: dict[Value, str] = {}
    for text in SAMPLES:
        try:
            value = key.parse(text)
        except ConfigError:
            continue
        if value != key.default:
            texts_by_value.setdefault(value, text)
    texts = list(texts_by_value.values())
    return [texts[0], texts[-1]]


# Topic configs with effect whose default is a dynamic broker config, with that config.
INHERITING = {
    name: key.synonyms[0].name
    for name, key in ALL_TOPIC_CONFIGS.items()
    if key.no_effect is None and key.synonyms and BROKER_CONFIGS[key.synonyms[0].name].update_mode is not READ_ONLY
}


async def set_all(client: Client, resource: str, values: dict[str, str]) -> None:
    await client._alter(ConfigResourceType.BROKER, resource, values)


async def unset_all(client: Client, resource: str, names: list[str]) -> None:
    changes = [AlterableConfig(name=name, config_operation=1, value=None) for name in names]
    alteration = AlterConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name=resource, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[alteration])
    (response,) = (await client.request(request, 1, IncrementalAlterConfigsResponse)).responses
    assert response.error_code == 0, response.error_message


def inherited_values(m: Machine, topic: str = "t") -> dict[str, Value]:
    config = m.partition(topic).log.config
    return {name: config.get(name) for name in INHERITING}


@broker_test
async def test_topics_use_altered_broker_configs_at_once_and_after_restarts(m: Machine) -> None:
    assert len(INHERITING) > 20
    client = await m.client()
    await client.create_topic("t")
    await client.create_topic("overriding", **{"segment_bytes": 4_000_000})
    before = inherited_values(m)
    keys = {name: BROKER_CONFIGS[synonym] for name, synonym in INHERITING.items()}
    cluster_default = {key.name: two_other_values(key)[0] for key in keys.values()}
    # Of min.insync.replicas only the value of all brokers can be altered (KIP-966).
    per_broker = {key.name: two_other_values(key)[1] for key in keys.values() if key.name != MIN_ISR}
    all_brokers = {name: ALL_TOPIC_CONFIGS[name].parse(cluster_default[key.name]) for name, key in keys.items()}
    effective = cluster_default | per_broker
    this_broker = {name: ALL_TOPIC_CONFIGS[name].parse(effective[key.name]) for name, key in keys.items()}

    await set_all(client, "", cluster_default)
    assert inherited_values(m) == all_brokers
    await m.restart()
    assert inherited_values(m) == all_brokers
    client = await m.client()
    await set_all(client, "1", per_broker)
    assert inherited_values(m) == this_broker
    assert m.partition("overriding").log.config.segment_bytes == 4_000_000
    await m.crash()
    await m.start()
    assert inherited_values(m) == this_broker
    client = await m.client()
    await unset_all(client, "1", list(per_broker))
    assert inherited_values(m) == all_brokers
    await unset_all(client, "", list(cluster_default))
    assert inherited_values(m) == before
    await m.restart()
    assert inherited_values(m) == before


async def greet(client: Client) -> None:
    await client.request(ApiVersionsRequest(), 0, ApiVersionsResponse)


async def seconds_to_greet(m: Machine, connections: int) -> list[float]:
    """Open connections at the same time; return how long each waits for its first response, in seconds, sorted."""
    began = m.loop.time()

    async def one() -> float:
        await greet(await m.client())
        return m.loop.time() - began

    return sorted(await asyncio.gather(*(one() for _ in range(connections))))


@broker_test(max_connection_creation_rate=2)
async def test_connections_are_accepted_at_the_maximum_rate(m: Machine) -> None:
    await asyncio.sleep(5)
    waits = await seconds_to_greet(m, 6)
    assert [round(wait, 1) for wait in waits] == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0]
    client = await m.client()
    await client.alter_broker(max_connection_creation_rate=1000)
    await asyncio.sleep(5)
    assert max(await seconds_to_greet(m, 50)) < 0.1


@broker_test(listener_name_plaintext_max_connections=2, max_connections=3)
async def test_a_listener_can_have_a_lower_connection_limit(m: Machine) -> None:
    clients = [await m.client(), await m.client()]
    for client in clients:
        await greet(client)
    await (await m.client()).closed
    await clients[0]._alter(ConfigResourceType.BROKER, "1", {"listener.name.plaintext.max.connections": "10"})
    await greet(await m.client())
    await (await m.client()).closed


async def create(client: Client, name: str) -> tuple[int, str | None]:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (result,) = (await client.request(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)).topics
    return result.error_code, result.error_message


@broker_test
async def test_a_cordoned_directory_gets_no_new_partitions(m: Machine) -> None:
    """Only an assignment in the request places partitions there. The error messages are those of Kafka 4.3.1."""
    client = await m.client()
    assert await create(client, "before") == (0, None)
    await client._alter(ConfigResourceType.BROKER, "1", {"cordoned.log.dirs": "*"})
    all_cordoned = "All brokers are currently fenced, or have all their log directories cordoned."
    assert await create(client, "t") == (38, f"Unable to replicate the partition 1 time(s): {all_cordoned}")
    two_partitions = CreatePartitionsTopic(name="before", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[two_partitions], timeout_ms=1000)
    (result,) = (await client.request(request, 3, CreatePartitionsResponse)).results
    assert (result.error_code, result.error_message) == (38, all_cordoned)
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
    topic = CreatableTopic(name="assigned", num_partitions=-1, replication_factor=-1, assignments=[assignment])
    (created,) = (await client.request(CreateTopicsRequest(topics=[topic]), 7, CreateTopicsResponse)).topics
    assert created.error_code == 0
    await unset_all(client, "1", ["cordoned.log.dirs"])
    assert await create(client, "t") == (0, None)


@broker_test(num_io_threads=5)
async def test_num_io_threads_can_be_altered(m: Machine) -> None:
    counts: list[int] = []
    m.broker.environment.set_thread_count = counts.append
    client = await m.client()
    await client.alter_broker(num_io_threads=7)
    await client._alter(ConfigResourceType.BROKER, "1", {"num.io.threads": "9"})
    await unset_all(client, "1", ["num.io.threads"])
    assert counts == [7, 9, 7]


def test_the_thread_pool_can_be_resized() -> None:
    pairs, fours = threading.Barrier(2, timeout=60), threading.Barrier(4, timeout=60)
    lock = threading.Lock()
    running, peak = 0, 0

    def work(barrier: threading.Barrier) -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        barrier.wait()
        with lock:
            running -= 1

    async def resize() -> None:
        nonlocal peak
        threads = ThreadPool(asyncio.get_running_loop())
        threads.resize(2)
        await asyncio.gather(*(threads(work, pairs) for _ in range(8)))
        assert peak == 2
        peak = 0
        slow = threads(work, pairs)
        threads.resize(4)
        # Work that started before the resize completes.
        pairs.wait()
        await slow
        await asyncio.gather(*(threads(work, fours) for _ in range(8)))
        assert peak == 4
        threads.resize(1)

    asyncio.run(resize())


@broker_test(connections_max_idle_ms=-1)
async def test_a_negative_maximum_idle_time_disables_it(m: Machine) -> None:
    client = await m.client()
    await greet(client)
    await asyncio.sleep(HOUR)
    assert not client.closed.done()
    await greet(client)


@broker_test(started=False, num_recovery_threads_per_data_dir=3)
async def test_logs_are_recovered_by_num_recovery_threads(m: Machine) -> None:
    await m.start()
    await (await m.client()).create_topic("t", 8 * LOGS_PER_JOB)
    await m.stop()
    m.threads.held.add("_open_group_blocking")
    m.threads.started.clear()
    starting = asyncio.ensure_future(m.start())
    await m.until(lambda: m.threads.started["_open_group_blocking"])
    await asyncio.sleep(1)
    assert m.threads.started["_open_group_blocking"] == 3
    m.threads.release("_open_group_blocking")
    await starting
    assert m.threads.started["_open_group_blocking"] == 8
    assert len(m.broker.services.replicas.partitions) == 8 * LOGS_PER_JOB


@broker_test(
    started=False,
    process_roles="broker,controller",
    listeners=f"PLAINTEXT://{HOST}:{PORT},CONTROLLER://{HOST}:9093",
    advertised_listeners=f"PLAINTEXT://{HOST}:{PORT},CONTROLLER://{HOST}:9093",
    controller_listener_names="CONTROLLER",
    controller_quorum_bootstrap_servers=f"{HOST}:9093",
)
async def test_a_combined_broker_and_controller_starts_as_a_broker(
    m: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """The configs are those of Kafka's server.properties."""
    await m.start()
    await greet(await m.client())
    messages = "\n".join(record.message for record in caplog.records)
    assert f"the listener CONTROLLER://{HOST}:9093 is not opened: kbroker has no metadata quorum" in messages
    assert f"controller.quorum.bootstrap.servers={HOST}:9093 is accepted, but has no effect" in messages
    with pytest.raises(OSError, match="nothing listens"):
        await m.loop.create_connection(lambda: Client(m.loop), HOST, 9093, local_addr=("client", 0))


def test_the_limits_of_the_broker_apply_to_configs_that_were_set_before():
    config = BrokerConfig.load(
        {"group.consumer.max.session.timeout.ms": "50000", "group.streams.max.standby.replicas": "1"}
    )
    group = config.group_config({"consumer.session.timeout.ms": "60000", "streams.num.standby.replicas": "2"})
    assert (group.consumer_session_timeout_ms, group.streams_num_standby_replicas) == (50_000, 1)
    assert config.group_config({}) is config.group_defaults
    # Each heartbeat asks for it.
    overrides = {"consumer.session.timeout.ms": "50000"}
    assert config.group_config(dict(overrides)) is config.group_config(overrides)


def test_a_groups_default_is_the_brokers_dynamic_value():
    config = BrokerConfig.load({"group.share.record.lock.duration.ms": "20000"})
    config = config.with_dynamic({"group.consumer.assignment.interval.ms": "7"}, {})
    group = config.group_config({"share.isolation.level": "read_committed"})
    assert (group.consumer_assignment_interval_ms, group.share_record_lock_duration_ms) == (7, 20_000)
    assert (group.share_isolation_level, group.streams_assignor_name) == ("read_committed", "sticky")
