"""Names of broker configs for one listener: `listener.name.<listener>.[<mechanism>.]<config>`."""

import re

from kbroker.config.definitions.broker import BROKER_CONFIGS

_PREFIXED_NAME = re.compile(r"listener\.name\.[^.]+\.(.+)")


def strip_listener_prefix(name: str) -> str:
    """Return the config's name without its listener prefix; a name without a prefix is returned unchanged."""
    match = _PREFIXED_NAME.fullmatch(name)
    if match is None:
        return name
    suffix = match[1]
    without_mechanism = suffix.partition(".")[2]
    return without_mechanism if suffix not in BROKER_CONFIGS and without_mechanism in BROKER_CONFIGS else suffix
