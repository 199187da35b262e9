"""Listeners: `NAME://host:port` entries of `listeners` and `advertised.listeners`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from kbroker.common import format_address
from kbroker.config.values import ConfigError

_ENDPOINT = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:/\[\]]*)):(-?[0-9]{1,6})")
WILDCARDS = ("", "0.0.0.0", "::", "0:0:0:0:0:0:0:0")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Endpoint(NamedTuple):
    """The name and the address of a listener. An empty `host` means every interface, port 0 any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"

    @property
    def address(self) -> str:
        """host:port, as in a client's bootstrap.servers."""
        return format_address(self.host, self.port)


def parse_endpoints(config: str, entries: Sequence[str]) -> tuple[Endpoint, ...]:
    """Parse the entries of config `config`. Raises ConfigError for an invalid entry and for a repeated name."""
    endpoints = []
    for entry in entries:
        match = _ENDPOINT.fullmatch(entry)
        if match is None:
            raise ConfigError(
                f"Invalid value {entry} for configuration {config}: "
                "each entry must have the form NAME://host:port, for example PLAINTEXT://127.0.0.1:9092"
            )
        name, ipv6, host, port = match.groups()
        if not 0 <= int(port) <= 65535:
            raise ConfigError(f"Invalid value {entry} for configuration {config}: port must be 0 to 65535")
        endpoints.append(Endpoint(name.upper(), ipv6 or host or "", int(port)))
    names = [endpoint.name for endpoint in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"Each listener must have a different name, {config} has {name} more than once")
    return tuple(endpoints)


def exclude_controller_listeners(
    endpoints: Sequence[Endpoint], controller_names: Sequence[str]
) -> tuple[Endpoint, ...]:
    """Return the listeners for clients. Kafka's server.properties also has listeners of the metadata quorum."""
    names = {name.upper() for name in controller_names}
    return tuple(endpoint for endpoint in endpoints if endpoint.name not in names)


def check_security_protocols(endpoints: Sequence[Endpoint], protocol_map: str) -> None:
    """Raise ConfigError unless listener.security.protocol.map maps every listener to PLAINTEXT."""
    protocols = dict(part.split(":", 1) for part in protocol_map.split(",") if ":" in part)
    for endpoint in endpoints:
        protocol = protocols.get(endpoint.name, "").strip().upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"No security protocol defined for listener {endpoint.name}; "
                "listener.security.protocol.map must name one"
            )
        if protocol != "PLAINTEXT":
            raise ConfigError(f"Listener {endpoint} has the security protocol {protocol}; only PLAINTEXT is supported")


def resolve_advertised_listeners(
    listeners: Sequence[Endpoint], configured: Sequence[Endpoint] | None
) -> tuple[Endpoint, ...]:
    """Return `configured` (advertised.listeners), or the listeners if it is None.

    Raises ConfigError for a wildcard address, to which no client can connect. An advertised port 0 stands for the port
    that the listener of that name is bound to.
    """
    if configured is None:
        for endpoint in listeners:
            if endpoint.host in WILDCARDS:
                raise ConfigError(
                    f"Listener {endpoint} is on every interface; set advertised.listeners to the address "
                    f"that clients use, for example {endpoint.name}://my.host.name:{endpoint.port}"
                )
        return tuple(listeners)
    names = {endpoint.name for endpoint in listeners}
    for endpoint in configured:
        if endpoint.host in WILDCARDS:
            raise ConfigError(
                f"advertised.listeners cannot use the wildcard address {endpoint.address}; "
                "give a host name or address that clients can connect to"
            )
        if endpoint.name not in names:
            raise ConfigError(f"advertised.listeners has {endpoint.name}, which is not among the listeners")
    return tuple(configured)
