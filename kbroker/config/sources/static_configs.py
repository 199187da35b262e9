"""Static configs with their origins, those of environment variables, and the precedence of their sources."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.config.definitions.broker import BROKER_CONFIGS

PREFIX = "KBROKER_"
# Variables with the prefix that are not configs: variables of the command line, scripts, container image and tests,
_OTHER_VARIABLES = (
    r"KBROKER_(?:BOOTSTRAP|COMMAND_CONFIG|DATA|KAFKA_OPTIONS|PASSWORD|PYTHON|SPARK_JARS|COMPAT_.*|FUZZ_.*|TEST_.*"
    # and variables that Kubernetes and container links set for a service with the name kbroker.
    r"|SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_.*)?|NAME|ENV_.*)"
)


class StaticConfig(NamedTuple):
    """A config's text and its origin: `file:line`, an environment variable or a command-line option."""

    text: str
    origin: str


StaticConfigs = dict[str, StaticConfig]

# Two names of one config. A source with higher precedence replaces the value under either name.
ALIASES = {"node.id": "broker.id", "broker.id": "node.id", "log.dirs": "log.dir", "log.dir": "log.dirs"}


def merge_sources(*sources: Mapping[str, StaticConfig]) -> StaticConfigs:
    """Merge the configs of several sources, the one with the lowest precedence first."""
    merged: StaticConfigs = {}
    for source in sources:
        for name in source:
            alias = ALIASES.get(name)
            if alias is not None and alias not in source:
                merged.pop(alias, None)
        merged.update(source)
    return merged


def from_environment(variables: Mapping[str, str]) -> StaticConfigs:
    """Return the configs that environment variables set; their names are not validated.

    KBROKER_LOG_RETENTION_MS sets log.retention.ms. `_` stands for `.`, `__` for `_` and `___` for `-`, as in the KAFKA_
    variables of Kafka's container image.
    """
    return {
        config_name(variable): StaticConfig(text, variable)
        for variable, text in variables.items()
        if variable.startswith(PREFIX) and not re.fullmatch(_OTHER_VARIABLES, variable)
    }


def config_name(variable: str) -> str:
    """Return the config that an environment variable sets: KBROKER_X_Y is x.y, or kbroker.x.y if that is a config."""
    text = variable.removeprefix(PREFIX).lower()
    name = re.sub("_+", lambda run: {1: ".", 2: "_", 3: "-"}.get(len(run[0]), run[0]), text)
    prefixed = f"kbroker.{name}"
    return prefixed if name not in BROKER_CONFIGS and prefixed in BROKER_CONFIGS else name
