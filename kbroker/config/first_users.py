"""The first SCRAM users of a cluster, as `kafka-storage format --add-scram` has them:

SCRAM-SHA-256=[name=alice,password=alice-secret,iterations=8192]
"""

import re
from typing import NamedTuple

from kbroker.config.values import ConfigError
from protocol.scram import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, ScramMechanism

_SPEC = re.compile(r"([A-Z0-9-]+)=\[(.*)\]", re.DOTALL)
_FIELDS = re.compile(r'(name|password|iterations)=("[^"]*"|[^,"]*)(?:,|$)')


class FirstUser(NamedTuple):
    name: str
    mechanism: ScramMechanism
    password: str
    iterations: int


def parse_first_user(text: str) -> FirstUser:
    """Raises ConfigError, whose message has no password."""
    match = _SPEC.fullmatch(text.strip())
    fields = {name: value.strip('"') for name, value in _FIELDS.findall(match[2])} if match is not None else {}
    mechanism = MECHANISMS.get(match[1]) if match is not None else None
    iterations = fields.get("iterations", str(MIN_ITERATIONS))
    is_complete = match is not None and _FIELDS.sub("", match[2]) == ""
    if mechanism is None or not is_complete or not fields.get("name") or not fields.get("password"):
        raise ConfigError("a SCRAM user must have the form SCRAM-SHA-256=[name=NAME,password=PASSWORD]")
    if not iterations.isdecimal() or not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise ConfigError(f"the iterations of a SCRAM user must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return FirstUser(fields["name"], mechanism, fields["password"], int(iterations))
