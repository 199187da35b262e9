"""Where a broker's static configuration comes from, and which source is the stronger; files are in files.py.

Pure: texts in, values with their origin out.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from kbroker.config.definitions.broker import BROKER_CONFIGS

ENV_PREFIX = "KBROKER_"
# Other programs' variables: the command line, the scripts, the image and the tests have them.
_NOT_CONFIGS = (
    r"KBROKER_(?:BOOTSTRAP|DATA|PYTHON|SPARK_JARS|COMPAT_.*|FUZZ_.*"
    # What Kubernetes and linked containers say about a service of the name kbroker.
    r"|SERVICE_HOST|SERVICE_PORT(?:_.*)?|PORT|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_.*)?|NAME|ENV_.*)"
)
# Names for one thing: the one that a stronger source gives replaces the other.
ALIASES = {"node.id": "broker.id", "broker.id": "node.id", "log.dirs": "log.dir", "log.dir": "log.dirs"}


class StaticConfig(NamedTuple):
    """A config's text, and where it stands: `file:line`, a variable's name, an option."""

    text: str
    origin: str


StaticConfigs = dict[str, StaticConfig]


def merge_sources(*layers: Mapping[str, StaticConfig]) -> StaticConfigs:
    """The layers in one, the strongest last."""
    result: StaticConfigs = {}
    for layer in layers:
        for name in layer:
            twin = ALIASES.get(name)
            if twin is not None and twin not in layer:
                result.pop(twin, None)
        result.update(layer)
    return result


def from_environment(variables: Mapping[str, str]) -> StaticConfigs:
    """KBROKER_LOG_RETENTION_MS for log.retention.ms: `_` stands for `.`, `__` for `_`, `___` for `-`.

    As in Kafka's container image, with its KAFKA_. Which names there are is not checked here.
    """
    return {
        config_name(variable): StaticConfig(text, variable)
        for variable, text in variables.items()
        if variable.startswith(ENV_PREFIX) and not re.fullmatch(_NOT_CONFIGS, variable)
    }


def config_name(variable: str) -> str:
    """The config that an environment variable sets. kbroker's own need not say kbroker twice."""
    rest = variable.removeprefix(ENV_PREFIX).lower()
    name = re.sub("_+", lambda run: {1: ".", 2: "_", 3: "-"}.get(len(run[0]), run[0]), rest)
    own = f"kbroker.{name}"
    return own if name not in BROKER_CONFIGS and own in BROKER_CONFIGS else name
