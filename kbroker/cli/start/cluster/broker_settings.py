"""The configs of each broker of `kbroker start --brokers N`, from those of the command line."""

import os
from collections.abc import Mapping, Sequence

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.start.cluster.cluster_directory import broker_directory
from kbroker.config import BrokerConfig, Endpoint
from kbroker.config.sources.static_configs import StaticConfigs
from kbroker.storage.file_names import META_PROPERTIES

# Configs that the command line must not set, because they differ between the brokers.
OWN = ("node.id", "broker.id", "zookeeper.connect", "kbroker.zookeeper.digest", "kbroker.inter.broker.listener")
MAX_BROKERS = 100
# A broker that is killed is replaced after this time. kbroker's default is for a ZooKeeper in a network.
SESSION_TIMEOUT_MS = 6_000
# The parent opens the coordination service while the brokers start, which takes long on a slow disk.
CONNECTION_TIMEOUT_MS = 30_000


def coordination_directory(directory: str) -> str:
    return f"{directory}/coordination"


def check_directory(directory: str, brokers: int) -> None:
    """Raise CliError if the directory is that of a single broker or of more brokers, or has no metadata."""
    if os.path.exists(f"{directory}/{META_PROPERTIES}"):
        raise CliError(f"{directory} has the data of a single broker: start it without --brokers")
    # Not only that of the next broker, which may have lost its directory.
    if any(os.path.isdir(broker_directory(directory, number)) for number in range(brokers + 1, MAX_BROKERS + 1)):
        count = "one broker" if brokers == 1 else f"{brokers} brokers"
        raise CliError(f"{directory} has the data of more than {count}, and partitions may be on any of them")
    coordination = coordination_directory(directory)
    owned = (f"{broker_directory(directory, number)}/{META_PROPERTIES}" for number in range(1, brokers + 1))
    if not os.path.isdir(coordination) and any(map(os.path.exists, owned)):
        raise CliError(
            f"{directory} has the data of brokers, but not the metadata of their topics: restore {coordination}"
        )


def broker_settings(
    properties: StaticConfigs, brokers: int, directory: str, connect: Sequence[str], digest: str
) -> list[dict[str, str]]:
    """Return the configs of each broker.

    `connect`: an address of the coordination service for each broker; `digest`: its credentials. Ports count up from
    those that are configured. Raises CliError, ConfigError.
    """
    if not 1 <= brokers <= MAX_BROKERS:
        raise usage_error(f"--brokers must be from 1 to {MAX_BROKERS}")
    for name in OWN:
        if name in properties:
            raise usage_error(f"{name} cannot be set with --brokers ({properties[name].origin})")
    texts = {name: source.text for name, source in properties.items() if name not in ("log.dir", "log.dirs")}
    config = BrokerConfig.load(texts)
    return [
        {
            **_defaults(brokers),
            **texts,
            **_addresses(config, texts, node_id - 1),
            "node.id": str(node_id),
            "log.dirs": broker_directory(directory, node_id),
            "zookeeper.connect": connect[node_id - 1],
            "kbroker.zookeeper.digest": digest,
        }
        for node_id in range(1, brokers + 1)
    ]


def _defaults(brokers: int) -> dict[str, str]:
    factor = str(min(3, brokers))
    return {
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": "2" if brokers >= 3 else "1",
        "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        "zookeeper.connection.timeout.ms": str(CONNECTION_TIMEOUT_MS),
    }


def _addresses(config: BrokerConfig, texts: Mapping[str, str], index: int) -> dict[str, str]:
    """Return the listeners of the broker with this index, from 0."""
    addresses = {"listeners": ",".join(str(_shifted(endpoint, index)) for endpoint in config.listeners)}
    if "advertised.listeners" in texts:
        endpoints = (_shifted(endpoint, index) for endpoint in config.advertised_listeners)
        addresses["advertised.listeners"] = ",".join(map(str, endpoints))
    if config.kbroker_metrics_listener:
        host, _, port = config.kbroker_metrics_listener.rpartition(":")
        addresses["kbroker.metrics.listener"] = f"{host}:{_shifted_port(int(port), index)}"
    return addresses


def _shifted(endpoint: Endpoint, index: int) -> Endpoint:
    return endpoint._replace(port=_shifted_port(endpoint.port, index))


def _shifted_port(port: int, index: int) -> int:
    """Return the port of a broker. Port 0 is any free port. Raises CliError beyond the highest port."""
    if port + index > 65_535:
        raise CliError(f"there is no port for broker {index + 1}: {port} + {index} is above 65535")
    return port + index if port else 0


def properties_text(settings: Mapping[str, str]) -> str:
    """Return the configs as a properties file."""
    lines = (f"{name}={text.replace(chr(92), chr(92) * 2)}" for name, text in sorted(settings.items()))
    return "# Written at each start of the cluster: this broker alone, after it was killed.\n" + "".join(
        f"{line}\n" for line in lines
    )
