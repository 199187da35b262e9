"""listeners, advertised.listeners, and the defaults of a broker that has others."""

import pytest

from kbroker.config import BrokerConfig, ConfigError, Endpoint


def load(
    listeners: str, advertised: str | None = None, protocols: str | None = None, inter_broker: str | None = None
) -> BrokerConfig:
    configs = {"listeners": listeners}
    if inter_broker is not None:
        configs["inter.broker.listener.name"] = inter_broker
    if advertised is not None:
        configs["advertised.listeners"] = advertised
    if protocols is not None:
        configs["listener.security.protocol.map"] = protocols
    return BrokerConfig.load(configs)


@pytest.mark.parametrize(
    ("text", "endpoint", "address"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Endpoint("PLAINTEXT", "127.0.0.1", 9092), "127.0.0.1:9092"),
        ("plaintext://broker.example.com:0", Endpoint("PLAINTEXT", "broker.example.com", 0), "broker.example.com:0"),
        ("PLAINTEXT://[::1]:9092", Endpoint("PLAINTEXT", "::1", 9092), "[::1]:9092"),
    ],
)
def test_an_endpoint_has_name_host_and_port(text: str, endpoint: Endpoint, address: str):
    config = load(text)
    assert config.listeners == config.advertised_listeners == (endpoint,)
    assert endpoint.address == address


INSIDE_OUTSIDE = "inside:plaintext, OUTSIDE:PLAINTEXT,PLAINTEXT:PLAINTEXT"


def test_several_listeners_have_different_names():
    config = load("INSIDE://:1, outside://:2", "INSIDE://a:1,OUTSIDE://b:3", INSIDE_OUTSIDE, "inside")
    assert [endpoint.port for endpoint in config.listeners] == [1, 2]
    assert [endpoint.address for endpoint in config.advertised_listeners] == ["a:1", "b:3"]
    assert config.inter_broker_listener_name == "INSIDE"
    assert config.inter_broker_listener == (Endpoint("INTERBROKER", "", 0), "a")


def test_an_advertised_address_is_optional_and_may_have_the_port_of_another():
    config = load("PLAINTEXT://:1,OUTSIDE://:2,INSIDE://:3", "PLAINTEXT://a:9,OUTSIDE://b:9", INSIDE_OUTSIDE)
    assert [endpoint.name for endpoint in config.advertised_listeners] == ["PLAINTEXT", "OUTSIDE"]


@pytest.mark.parametrize(
    ("listeners", "accepted"),
    [
        # Apache Kafka 4.4.0 accepts and refuses these.
        ("PLAINTEXT://a:1,INSIDE://a:2", True),
        ("PLAINTEXT://a:0,INSIDE://a:0", True),
        ("PLAINTEXT://127.0.0.1:1,INSIDE://[::1]:1", True),
        ("PLAINTEXT://127.0.0.1:1,INSIDE://127.0.0.2:1", False),
        ("PLAINTEXT://127.0.0.1:1,INSIDE://[::1]:1,OUTSIDE://127.0.0.2:1", False),
        ("PLAINTEXT://a:1,INSIDE://b:1", False),
    ],
)
def test_listeners_have_different_ports(listeners: str, accepted: bool):
    if accepted:
        assert load(listeners, None, INSIDE_OUTSIDE).inter_broker_listener_name == "PLAINTEXT"
        return
    with pytest.raises(ConfigError, match="Each listener must have a different port unless exactly one"):
        load(listeners, None, INSIDE_OUTSIDE)


@pytest.mark.parametrize(
    ("inter_broker", "reason"),
    [
        (None, "inter.broker.listener.name must be a listener name defined in advertised.listeners"),
        ("INSIDE", "The valid options based on currently configured listeners are OUTSIDE,PLAINTEXT2"),
        ("OTHER", "Listener with name OTHER defined in inter.broker.listener.name not found in"),
        ("", "The provided listener name is null or empty string"),
    ],
)
def test_the_listener_of_brokers_must_be_known(inter_broker: str | None, reason: str):
    listeners = "INSIDE://a:1,OUTSIDE://a:2,PLAINTEXT2://a:3"
    protocols = f"{INSIDE_OUTSIDE},PLAINTEXT2:PLAINTEXT"
    with pytest.raises(ConfigError, match=reason):
        load(listeners, "OUTSIDE://b:1,PLAINTEXT2://b:2", protocols, inter_broker)


@pytest.mark.parametrize(
    ("listeners", "advertised", "reason"),
    [
        ("127.0.0.1:9092", None, "each entry must have the form NAME://host:port"),
        ("PLAINTEXT://127.0.0.1", None, "each entry must have the form NAME://host:port"),
        ("PLAINTEXT://::1:9092", None, "each entry must have the form NAME://host:port"),
        ("PLAINTEXT://h:65536", None, "port must be 0 to 65535"),
        ("PLAINTEXT://a:1,PLAINTEXT://b:2", None, "listeners has PLAINTEXT more than once"),
        ("INSIDE://a:1", None, "No security protocol defined for listener INSIDE"),
        ("", None, "must not be empty"),
        ("PLAINTEXT://0.0.0.0:1", None, "is on every interface; set advertised.listeners"),
        ("PLAINTEXT://:1", None, "is on every interface; set advertised.listeners"),
        ("PLAINTEXT://[::]:1", None, "is on every interface; set advertised.listeners"),
        ("PLAINTEXT://a:1", "PLAINTEXT://0.0.0.0:1", "cannot use the wildcard address 0.0.0.0:1"),
        ("PLAINTEXT://a:1", "PLAINTEXT://[::]:1", r"cannot use the wildcard address \[::\]:1"),
        ("PLAINTEXT://a:1", "OTHER://b:1", "advertised.listeners has OTHER, which is not among the listeners"),
    ],
)
def test_listeners_that_no_client_could_use_are_rejected(listeners: str, advertised: str | None, reason: str):
    with pytest.raises(ConfigError, match=reason):
        load(listeners, advertised)


def test_a_wildcard_listener_needs_an_advertised_address():
    config = load("PLAINTEXT://0.0.0.0:9092", "PLAINTEXT://broker:9092")
    assert config.listeners[0].host == "0.0.0.0"
    assert config.advertised_listeners[0].address == "broker:9092"


@pytest.mark.parametrize(
    ("configs", "listener", "host"),
    [
        ({"listeners": "PLAINTEXT://10.0.0.1:9092"}, "INTERBROKER://10.0.0.1:0", "10.0.0.1"),
        (
            {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://b.example:9"},
            "INTERBROKER://:0",
            "b.example",
        ),
        ({"kbroker.inter.broker.listener": "10.0.0.2:9093"}, "INTERBROKER://10.0.0.2:9093", "10.0.0.2"),
        ({"kbroker.inter.broker.listener": ":9093"}, "INTERBROKER://:9093", "127.0.0.1"),
    ],
)
def test_the_listener_for_other_brokers(configs: dict[str, str], listener: str, host: str):
    endpoint, reached_at = BrokerConfig.load(configs).inter_broker_listener
    assert (str(endpoint), reached_at) == (listener, host)


def test_internal_topics_of_a_cluster_have_kafkas_defaults():
    factors = ["offsets.topic.replication.factor", "transaction.state.log.replication.factor"]
    names = [*factors, "transaction.state.log.min.isr"]
    assert [BrokerConfig.load({}).get(name) for name in names] == [1, 1, 1]
    cluster = {"zookeeper.connect": "127.0.0.1:2181"}
    assert [BrokerConfig.load(cluster).get(name) for name in names] == [3, 3, 2]
    assert BrokerConfig.load({**cluster, factors[0]: "1"}).offsets_topic_replication_factor == 1
