"""Broker config names with a listener in front: `listener.name.<listener>.[<mechanism>.]<config>`."""

import re

from kbroker.config.definitions.broker import BROKER_CONFIGS

_PREFIX = re.compile(r"listener\.name\.[^.]+\.(.+)")


def strip_listener_prefix(name: str) -> str:
    """The config that a listener-prefixed name is of, or the name itself."""
    match = _PREFIX.fullmatch(name)
    if match is None:
        return name
    rest = match[1]
    without_mechanism = rest.partition(".")[2]
    return without_mechanism if rest not in BROKER_CONFIGS and without_mechanism in BROKER_CONFIGS else rest
