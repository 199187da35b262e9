"""The configs that kbroker accepts, validates and describes as Kafka does, but that have no effect (no_effect.json).

The file is a part of the code. It has, by kind of resource and reason, a row for each config: name, type, default,
validator, importance, update mode, documentation, and for a config with a broker config as its default the name of that
one. A validator is the name of one in validators.py, or a list of the name of a function there and its arguments.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from kbroker.config import validators
from kbroker.config.config_def import BrokerSynonym, ConfigKey, Importance, NoEffect, UpdateMode, Validator
from kbroker.config.values import ConfigType, Value

_ROWS = json.loads(Path(__file__).with_suffix(".json").read_bytes())


def keys_without_effect(resource: str) -> Iterator[ConfigKey]:
    """Yield the configs of a kind of resource."""
    for reason, rows in _ROWS[resource].items():
        for row in rows:
            yield _key(NoEffect[reason], *row)


def _key(
    reason: NoEffect,
    name: str,
    config_type: str,
    default: Value | list[str],
    validator: str | list[object] | None,
    importance: str,
    update_mode: str,
    documentation: str,
    *synonyms: str,
) -> ConfigKey:
    return ConfigKey(
        name,
        ConfigType[config_type],
        tuple(default) if isinstance(default, list) else default,
        _validator(validator),
        Importance(importance),
        UpdateMode(update_mode),
        documentation,
        tuple(BrokerSynonym(synonym) for synonym in synonyms),
        reason,
    )


def _validator(spec: str | list[object] | None) -> Validator | None:
    if spec is None:
        return None
    if isinstance(spec, str):
        found: Validator = getattr(validators, spec)
        return found
    name, *arguments = spec
    made: Validator = getattr(validators, str(name))(*arguments)
    return made
