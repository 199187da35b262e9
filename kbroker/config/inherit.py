"""Values that topics and groups take over from the broker."""

from collections.abc import Mapping

from kbroker.config.config_def import ConfigDef
from kbroker.config.values import Value


def inherit_broker_values(rows: ConfigDef, broker: Mapping[str, Value]) -> dict[str, Value]:
    """For each config the value of its strongest synonym that has one, in the config's own unit."""
    values: dict[str, Value] = {}
    for name, row in rows.items():
        values[name] = row.default
        for synonym in row.synonyms:
            value = broker.get(synonym.name)
            if value is not None:
                values[name] = _scaled(value, synonym.factor)
                break
    return values


def _scaled(value: Value, factor: int) -> Value:
    """Negative numbers mean "no limit" in every unit."""
    return value * factor if factor > 1 and isinstance(value, int) and value > 0 else value
