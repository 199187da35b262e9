"""Static configs with their origins, and the precedence of their sources."""

from collections.abc import Mapping
from typing import NamedTuple


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
