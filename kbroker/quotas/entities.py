"""The entities that have quotas, the quotas of an entity, and what a request may alter (KIP-546).

Errors and their messages are those of Apache Kafka 4.4, except that host names are not looked up.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
# The name of an entity that stands for all of its type without quotas of their own; null in requests.
DEFAULT = ""

PRODUCER_RATE = "producer_byte_rate"
CONSUMER_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
MUTATION_RATE = "controller_mutation_rate"
CONNECTION_RATE = "connection_creation_rate"
CLIENT_QUOTAS = (PRODUCER_RATE, CONSUMER_RATE, REQUEST_PERCENTAGE, MUTATION_RATE)
# The type of the whole numbers among them, and the first number that it does not have.
_WHOLE = {PRODUCER_RATE: ("a LONG", 1 << 63), CONSUMER_RATE: ("a LONG", 1 << 63), CONNECTION_RATE: ("an INT", 1 << 31)}
_EPSILON = 1e-6

# The quotas of an entity, by name.
Quotas = Mapping[str, float]


class QuotaEntity(NamedTuple):
    """A user, a client id, both, or an address: each is a name, DEFAULT, or None if the entity does not have it."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> dict[str, str]:
        """Return the names by type. Kafka's order is that of a hash map: the client id comes first."""
        names = {CLIENT_ID: self.client_id, USER: self.user, IP: self.ip}
        return {kind: name for kind, name in names.items() if name is not None}


def check_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity of a request, which has names by type. Raises KafkaError."""
    for kind, name in parts.items():
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    if IP in parts and len(parts) > 1:
        # The missing space is Kafka's.
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    ip = parts.get(IP)
    if ip is not None and normal_address(ip) is None:
        raise _invalid(f"{ip} is not a valid IP or resolvable host.")
    return QuotaEntity(*(parts[kind] or DEFAULT if kind in parts else None for kind in ENTITY_TYPES))


def normal_address(text: str) -> str | None:
    """Return an address in one form, since it may have several; None if it is none."""
    try:
        address = ip_address(text.strip("[]"))
    except ValueError:
        return None
    return str(getattr(address, "ipv4_mapped", None) or address)


def altered_quotas(current: Quotas, entity: QuotaEntity, ops: Sequence[tuple[str, float | None]]) -> Quotas:
    """Return the quotas of an entity after operations: a value, or None to remove the quota. Raises KafkaError."""
    changes = dict(ops)
    if len(changes) < len(ops):
        raise ignored_duplicate(entity)
    valid = (CONNECTION_RATE,) if entity.ip is not None else CLIENT_QUOTAS
    for name, value in changes.items():
        if value is not None:
            _check_value(name, value, valid)
    return {name: value for name, value in {**current, **changes}.items() if value is not None}


def ignored_duplicate(entity: QuotaEntity) -> KafkaError:
    """Return the error of an entity that a request has twice, or with the same quota twice."""
    text = ", ".join(f"{kind}={name or 'null'}" for kind, name in entity.parts().items())
    return _invalid(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{text}}})")


def _check_value(name: str, value: float, valid: Collection[str]) -> None:
    if name not in valid:
        raise _invalid(f"Invalid configuration key {name}")
    if not math.isfinite(value):
        raise _invalid(f"Quota {name} must be a finite number")
    if value <= 0:
        raise _invalid(f"Quota {name} must be greater than 0")
    if name in _WHOLE:
        kind, end = _WHOLE[name]
        if value >= end:
            raise _invalid(f"Proposed value for {name} is too large for {kind}.")
        if abs(math.floor(value + _EPSILON) - value) > _EPSILON:
            raise _invalid(f"{name} cannot be a fractional value.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
