"""What the console connects to, and what its users may do."""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.client.requests import Address
from kbroker.client.security import NO_SECURITY
from kbroker.common import ClientSecurity


class ConsoleSettings(NamedTuple):
    """`hosts`: names in URLs besides localhost; addresses are always served. `token`: of all users, None for none."""

    bootstrap: Sequence[Address]
    security: ClientSecurity = NO_SECURITY
    allows_writes: bool = False
    hosts: frozenset[str] = frozenset()
    token: str | None = None
