"""Small types and functions that all packages share."""

from base64 import urlsafe_b64encode
from typing import NamedTuple

from protocol.errors import ErrorCode

Buffer = bytes | bytearray | memoryview

UNKNOWN_OFFSET = -1
NO_LEADER = -1
NO_PRODUCER_ID = -1

# Longer error messages, which quote long names of a request, are cut: a string of the protocol has at most 32,767
# bytes.
MAX_MESSAGE_CHARACTERS = 8000


class TopicPartition(NamedTuple):
    """The name of a topic and the index of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Principal(NamedTuple):
    """Who sends requests (Kafka: KafkaPrincipal), ANONYMOUS over a connection without authentication."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")


class StoreSettings(NamedTuple):
    """A key store or a trust store. `key`, `certificates`: PEM texts in place of a file. `config`: named in errors."""

    config: str
    type: str
    location: str | None
    password: str | None = None
    key: str | None = None
    certificates: str | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.location or self.certificates)


class TokenSource(NamedTuple):
    """Where a client gets its tokens. `url`: of a file with a token, or of an endpoint for client credentials."""

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""


class ClientSecurity(NamedTuple):
    """How a client connects to a listener. `trust_store`: None for the certificates of the system. `mechanism`: empty
    without SASL. `tokens`: where those of OAUTHBEARER come from. `file`: the properties that say it, "" without any.
    `properties`: those of --kafka, which win.
    """

    has_tls: bool = False
    trust_store: StoreSettings | None = None
    key_store: StoreSettings | None = None
    key_password: str | None = None
    checks_host: bool = True
    versions: tuple[str, str] = ("TLSv1.2", "TLSv1.3")
    mechanism: str = ""
    user: str = ""
    password: str = ""
    tokens: TokenSource | None = None
    file: str = ""
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def protocol(self) -> str:
        """The name in Kafka's security.protocol."""
        tls = "SSL" if self.has_tls else "PLAINTEXT"
        return f"SASL_{tls}" if self.mechanism else tls


def uuid_text(uuid: bytes) -> str:
    """Return a UUID of 16 bytes as Kafka prints it: URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid).decode().rstrip("=")


def format_address(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address (Kafka: Utils.formatAddress)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class KafkaError(Exception):
    """An error with a Kafka error code. `message` is for the client and for the log.

    API handlers turn it into the error fields of their responses.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        if message is not None and len(message) > MAX_MESSAGE_CHARACTERS:
            message = f"{message[: MAX_MESSAGE_CHARACTERS - 1]}…"
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}" if self.message else self.code.name


def install_command(extra: str) -> str:
    """Return the command that installs what an extra of this package requires.

    It names the packages. No registry has kbroker: anybody could register the name there.
    """
    import shlex
    from importlib.metadata import PackageNotFoundError, requires

    try:
        rows = requires("kbroker") or []
    except PackageNotFoundError:
        rows = []
    markers = (f"extra == '{extra}'", f'extra == "{extra}"')
    names = [shlex.quote(row.partition(";")[0].strip()) for row in rows if row.endswith(markers)]
    return "pip install " + (" ".join(names) or f"'.[{extra}]' in a clone of kbroker")
