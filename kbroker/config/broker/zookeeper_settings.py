"""ZooKeeperSettings: the configs of the connection to ZooKeeper, parsed."""

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.common import format_address
from kbroker.config.validators import parse_host_port
from kbroker.config.values import ConfigError, Value


@dataclass(slots=True, frozen=True)
class ZooKeeperSettings:
    """`hosts` are HOST:PORT. `chroot` is the path of the node below which everything is stored, "" for the root."""

    hosts: tuple[str, ...]
    chroot: str = ""
    session_timeout_s: float = 18.0
    connection_timeout_s: float = 18.0
    # user:password, "" for none.
    digest: str = ""
    # Whether new nodes can be used only with this digest.
    set_acl: bool = False
    tls: bool = False
    # PEM files; "" for none, or for the trusted certificates of the system.
    truststore: str = ""
    keystore: str = ""
    keystore_password: str = ""
    check_hostname: bool = True

    @property
    def address(self) -> str:
        return ",".join(self.hosts) + self.chroot


def zookeeper_settings(values: Mapping[str, Value]) -> ZooKeeperSettings:
    """Return the settings from the values of a broker's configs, which include zookeeper.connect.

    Raises ConfigError.
    """
    hosts, chroot = parse_connect(str(values["zookeeper.connect"]))
    digest = _text(values, "kbroker.zookeeper.digest")
    set_acl = bool(values["zookeeper.set.acl"])
    if digest and not all(digest.partition(":")):
        raise ConfigError("kbroker.zookeeper.digest must be USER:PASSWORD")
    if set_acl and not digest:
        raise ConfigError("zookeeper.set.acl requires kbroker.zookeeper.digest")
    session_timeout_s = _seconds(values, "zookeeper.session.timeout.ms")
    return ZooKeeperSettings(
        hosts=hosts,
        chroot=chroot,
        session_timeout_s=session_timeout_s,
        connection_timeout_s=_seconds(values, "zookeeper.connection.timeout.ms") or session_timeout_s,
        digest=digest,
        set_acl=set_acl,
        tls=bool(values["zookeeper.ssl.client.enable"]),
        truststore=_text(values, "zookeeper.ssl.truststore.location"),
        keystore=_text(values, "zookeeper.ssl.keystore.location"),
        keystore_password=_text(values, "zookeeper.ssl.keystore.password"),
        check_hostname=_text(values, "zookeeper.ssl.endpoint.identification.algorithm").lower() == "https",
    )


def parse_connect(text: str) -> tuple[tuple[str, ...], str]:
    """Parse HOST:PORT,HOST:PORT/CHROOT. Returns each HOST:PORT and the chroot, "" without one. Raises ConfigError.

    The default port is 2181.
    """
    servers, _, chroot = text.partition("/")
    hosts = []
    for server in servers.split(","):
        host, port = parse_host_port(server.strip()) or parse_host_port(f"{server.strip()}:2181") or ("", 0)
        if not host or not port or "@" in host:
            raise ConfigError(f"zookeeper.connect must be HOST:PORT[,HOST:PORT...][/CHROOT], not {text!r}")
        hosts.append(format_address(host, port))
    chroot = chroot.strip().rstrip("/")
    if any(part in ("", ".", "..", "zookeeper") for part in chroot.split("/")) and chroot:
        raise ConfigError(f"zookeeper.connect has an invalid chroot: /{chroot}")
    return tuple(hosts), f"/{chroot}" if chroot else ""


def _text(values: Mapping[str, Value], name: str) -> str:
    return str(values[name] or "")


def _seconds(values: Mapping[str, Value], name: str) -> float:
    value = values[name]
    return value / 1000 if isinstance(value, int) else 0.0
