"""Cordoned brokers get no replicas of new partitions (KIP-1066). A drain cordons its brokers first."""

from collections.abc import Iterable, Sequence
from typing import Any

from kbroker.cli.common.client import client_error_text
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.output import print_note
from kbroker.cli.configs.requests import Changes, Resource, alter_configs

CONFIG, ALL_DIRECTORIES = "cordoned.log.dirs", "*"
_DRAIN = "drain "


def drain_description(brokers: Iterable[int]) -> str:
    """Return the description of the plan that drains brokers."""
    return _DRAIN + ", ".join(map(str, brokers))


def drained_brokers(description: str) -> list[int]:
    """Return the brokers that a plan with this description drains."""
    if not description.startswith(_DRAIN):
        return []
    return [int(broker) for broker in description.removeprefix(_DRAIN).split(", ")]


def cordon(client: Any, brokers: Sequence[int]) -> list[int]:
    """Place no new replicas on brokers, and return those that are cordoned now. Prints a note on any other."""
    return _alter(client, brokers, {CONFIG: ("SET", ALL_DIRECTORIES)}, "new partitions may get replicas on it")


def uncordon(client: Any, brokers: Sequence[int]) -> list[int]:
    """Place new replicas on brokers again, and return those for which that is so. Prints a note on any other."""
    return _alter(client, brokers, {CONFIG: ("DELETE", None)}, "it stays cordoned")


def _alter(client: Any, brokers: Sequence[int], changes: Changes, consequence: str) -> list[int]:
    """Alter brokers, and return those that are altered. Others do that for a broker that is away."""
    from kafka.errors import KafkaError

    altered = []
    for broker in brokers:
        try:
            _alter_broker(client, Resource("broker", str(broker)), changes)
        except (CliError, KafkaError) as error:
            print_note(f"broker {broker}: {consequence}: {client_error_text(error)}")
        else:
            altered.append(broker)
    return altered


def _alter_broker(client: Any, broker: Resource, changes: Changes) -> None:
    """Raises CliError, KafkaError."""
    from kafka.errors import KafkaError

    try:
        alter_configs(client, broker, changes)
    except (CliError, KafkaError) as error:
        # Clients no longer find a broker that is fenced: CliError.
        try:
            alter_configs(client, broker, changes, at_any=True)
        except CliError:
            # It is not known to be away.
            raise error from None
