"""API keys, compared with kafka-python's, and the table of supported APIs."""

from kafka.protocol.api_key import ApiKey as KafkaPythonApiKey

from protocol.apis import ALL_APIS, APIS, BROKER_LISTENER_APIS, CLIENT_LISTENER_APIS, INTER_BROKER_APIS, NEVER, ApiKey
from protocol.messages import message_classes
from protocol.schema.message import message_info


def test_keys_are_those_of_kafka_python() -> None:
    ours = {key.name.title().replace("_", ""): key.value for key in ApiKey}
    # 4 to 7 were APIs between ZooKeeper brokers and controllers; Kafka 4.0 removed them.
    kafka_python_keys = {key.name: key.value for key in KafkaPythonApiKey if key.value not in range(4, 8)}
    assert kafka_python_keys.items() <= ours.items()


def test_every_api_has_its_messages() -> None:
    for api in ALL_APIS.values():
        for cls, kind in zip(message_classes(api.key), ("request", "response"), strict=True):
            info = message_info(cls)
            assert (info.key, info.kind) == (api.key, kind)
            assert info.flexible_from == api.flexible_from
            assert info.max_version >= api.max_version
            assert info.min_version <= api.min_version or api.key is ApiKey.PRODUCE


def test_advertised_versions_that_differ_from_those_of_the_messages() -> None:
    assert (APIS[ApiKey.PRODUCE].min_version, APIS[ApiKey.PRODUCE].max_version) == (0, 13)
    assert APIS[ApiKey.INIT_PRODUCER_ID].max_version == 5
    assert APIS[ApiKey.OFFSET_DELETE].flexible_from == NEVER
    assert all(key == api.key for key, api in APIS.items())


def test_clients_cannot_send_apis_between_brokers() -> None:
    assert not CLIENT_LISTENER_APIS.keys() & INTER_BROKER_APIS.keys()
    assert INTER_BROKER_APIS.keys() < BROKER_LISTENER_APIS.keys()
    assert all(key == api.key for key, api in BROKER_LISTENER_APIS.items())


def test_versions_on_each_listener() -> None:
    produce, fetch = CLIENT_LISTENER_APIS[ApiKey.PRODUCE], ApiKey.FETCH
    assert [version for version in range(15) if produce.serves(version)] == list(range(3, 14))
    assert [version for version in range(20) if BROKER_LISTENER_APIS[fetch].serves(version)] == [17, 18]
    assert CLIENT_LISTENER_APIS[fetch].serves(4)
    assert ApiKey.METADATA not in BROKER_LISTENER_APIS
