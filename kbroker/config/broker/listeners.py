"""Listeners: `NAME://host:port` entries of `listeners` and `advertised.listeners`.

The rules are Kafka's, and so are the messages of those that Kafka's users know.
"""

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from kbroker.common import format_address
from kbroker.config.values import ConfigError, Value

_ENDPOINT = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:/\[\]]*)):(-?[0-9]{1,6})")
WILDCARDS = ("", "0.0.0.0", "::", "0:0:0:0:0:0:0:0")
PLAINTEXT = "PLAINTEXT"
PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Endpoint(NamedTuple):
    """The name and the address of a listener. An empty `host` means every interface, port 0 any free port."""

    name: str
    host: str
    port: int
    security_protocol: str = PLAINTEXT

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"

    @property
    def address(self) -> str:
        """host:port, as in a client's bootstrap.servers."""
        return format_address(self.host, self.port)


def parse_listeners(values: Mapping[str, Value]) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...], str]:
    """Return the listeners for clients, the addresses that clients connect to, and the inter-broker listener's name.

    `values`: of all broker configs. Raises ConfigError.
    """
    protocols = _security_protocols(str(values["listener.security.protocol.map"]))
    controller_names = _strings(values["controller.listener.names"])

    def endpoints(name: str) -> tuple[Endpoint, ...]:
        return exclude_controller_listeners(parse_endpoints(name, _strings(values[name])), controller_names)

    bound = tuple(_with_protocol(endpoint, protocols) for endpoint in endpoints("listeners"))
    if not bound:
        raise ConfigError("listeners must contain a listener for clients, besides those of controller.listener.names")
    check_ports(bound)
    advertised = None if values["advertised.listeners"] is None else endpoints("advertised.listeners")
    advertised = resolve_advertised_listeners(bound, advertised)
    names = [endpoint.name for endpoint in advertised]
    return bound, advertised, _inter_broker_name(values, names, protocols)


def _inter_broker_name(values: Mapping[str, Value], names: Sequence[str], protocols: Mapping[str, str]) -> str:
    """Return the name of the listener whose endpoints brokers use. Raises ConfigError.

    As in Kafka, the default is the listener with the name of security.inter.broker.protocol. A single listener may have
    any name.
    """
    configured, protocol = values["inter.broker.listener.name"], str(values["security.inter.broker.protocol"])
    if configured is None and len(names) == 1:
        return names[0]
    name = protocol if configured is None else str(configured).upper()
    if not name:
        raise ConfigError("The provided listener name is null or empty string")
    if name not in protocols:
        raise ConfigError(
            f"Listener with name {name} defined in inter.broker.listener.name not found in "
            "listener.security.protocol.map."
        )
    if name not in names:
        raise ConfigError(
            "inter.broker.listener.name must be a listener name defined in advertised.listeners. "
            f"The valid options based on currently configured listeners are {','.join(names)}"
        )
    return name


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


def check_ports(endpoints: Sequence[Endpoint]) -> None:
    """Raise ConfigError if listeners share a port, unless they are one IPv4 and one IPv6 address.

    Ports 0 are different ones. Advertised addresses may have equal ports.
    """
    for port in {endpoint.port for endpoint in endpoints} - {0}:
        same = [endpoint for endpoint in endpoints if endpoint.port == port]
        if len(same) > 1 and sorted(_ip_version(endpoint.host) for endpoint in same) != [4, 6]:
            raise ConfigError(
                "Each listener must have a different port unless exactly one listener has an IPv4 address and the "
                f"other IPv6 address, listeners: {','.join(map(str, same))}, port: {port}"
            )


def _ip_version(host: str) -> int:
    """Return 4 or 6, 0 for a name."""
    try:
        return ip_address(host).version
    except ValueError:
        return 0


def exclude_controller_listeners(
    endpoints: Sequence[Endpoint], controller_names: Sequence[str]
) -> tuple[Endpoint, ...]:
    """Return the listeners for clients. Kafka's server.properties also has listeners of the metadata quorum."""
    names = {name.upper() for name in controller_names}
    return tuple(endpoint for endpoint in endpoints if endpoint.name not in names)


def _security_protocols(text: str) -> dict[str, str]:
    """Parse listener.security.protocol.map."""
    pairs = (part.split(":", 1) for part in text.split(",") if ":" in part)
    return {name.strip().upper(): protocol.strip().upper() for name, protocol in pairs}


def _with_protocol(endpoint: Endpoint, protocols: Mapping[str, str]) -> Endpoint:
    """Raises ConfigError unless listener.security.protocol.map maps the listener to a protocol."""
    protocol = protocols.get(endpoint.name, "")
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"No security protocol defined for listener {endpoint.name}; listener.security.protocol.map must name one"
        )
    return endpoint._replace(security_protocol=protocol)


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
    protocols = {endpoint.name: endpoint.security_protocol for endpoint in listeners}
    for endpoint in configured:
        if endpoint.host in WILDCARDS:
            raise ConfigError(
                f"advertised.listeners cannot use the wildcard address {endpoint.address}; "
                "give a host name or address that clients can connect to"
            )
        if endpoint.name not in protocols:
            raise ConfigError(f"advertised.listeners has {endpoint.name}, which is not among the listeners")
    return tuple(endpoint._replace(security_protocol=protocols[endpoint.name]) for endpoint in configured)


def _strings(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()
