"""Config files: TOML, or Kafka's server.properties.

Pure: the caller reads the file. This module is only imported when there is a file.
"""

import re
from collections.abc import Mapping

from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.sources.properties_file import parse_properties_file
from kbroker.config.sources.static_configs import StaticConfig, StaticConfigs
from kbroker.config.sources.toml_file import parse_toml_file
from kbroker.config.values import ConfigError

# Configs of earlier Kafka versions that Kafka 4.0 removed. kbroker has some of those of ZooKeeper.
_REMOVED = re.compile(
    r"zookeeper\..+|broker\.id\.generation\.enable|control\.plane\.listener\.name|delegation\.token\.master\.key"
    r"|inter\.broker\.protocol\.version|log\.message\.(?:format\.version|timestamp\.difference\.max\.ms)"
    r"|log\.message\.downconversion\.enable|offsets\.commit\.required\.acks|reserved\.broker\.max\.id"
    r"|(?:advertised\.)?host\.name|(?:advertised\.)?port"
)


def parse_config_file(path: str, data: bytes) -> StaticConfigs:
    """Parse a file's configs. Raises ConfigError.

    The format is determined by the file extension, .toml or .properties. A file with another extension is parsed as
    TOML, or as properties if it is not valid TOML.
    """
    if path.endswith(".properties"):
        return parse_properties_file(path, data)
    try:
        return parse_toml_file(path, data)
    except ConfigError:
        if path.endswith(".toml"):
            raise
        return parse_properties_file(path, data)


def drop_removed_configs(configs: Mapping[str, StaticConfig]) -> tuple[StaticConfigs, list[str]]:
    """Return the configs without those that Kafka 4.0 removed, and a warning for each of these."""
    kept: StaticConfigs = {}
    warnings = []
    for name, config in configs.items():
        if name not in BROKER_CONFIGS and _REMOVED.fullmatch(name):
            warnings.append(f"{name} ({config.origin}) was removed in Kafka 4.0 and is ignored")
        else:
            kept[name] = config
    return kept, warnings
