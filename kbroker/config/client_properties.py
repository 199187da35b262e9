"""The properties of Kafka's clients that say how to connect."""

from collections.abc import Mapping, Sequence

from kbroker.common import ClientSecurity, StoreSettings, TokenSource
from kbroker.config.broker.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from kbroker.config.broker.listeners import PROTOCOLS
from kbroker.config.broker.security import MECHANISMS, OAUTHBEARER, PLAIN, STORE_TYPES, TLS_VERSIONS, URL_SCHEMES
from kbroker.config.sources.files import parse_properties_file
from kbroker.config.values import ConfigError


def client_properties(path: str, data: bytes) -> dict[str, str]:
    """Return the properties in a file of Kafka's clients. Raises ConfigError."""
    return {name: config.text for name, config in parse_properties_file(path, data).items()}


SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")
_SECRETS = ("password", "secret", "jaas.config", ".key")
# Properties that the commands set themselves.
_OWN = {
    "bootstrap.servers": "is --bootstrap",
    "isolation.level": "is --committed-only",
    "config.providers": "is set by kbroker, for the secrets in the file of --command-config",
}


def parse_client_security(path: str, data: bytes, properties: Sequence[tuple[str, str]] = ()) -> ClientSecurity:
    """Parse a file of Kafka's clients; properties that are not about security are ignored. Raises ConfigError.

    `properties` win over those of the file.
    """
    texts = client_properties(path, data) | dict(properties)
    return _parse(texts)._replace(file=path, properties=tuple(properties))


def parse_kafka_options(options: Sequence[str], security_only: bool) -> tuple[tuple[str, str], ...]:
    """Parse the NAME=VALUE of --kafka; the last one of a name applies.

    `security_only`: the command has no other Kafka client than that of kbroker. Raises ConfigError, also for secrets:
    everybody sees arguments in the list of processes.
    """
    properties = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ConfigError(f"--kafka must be NAME=VALUE, not {name!r}")
        if name in _OWN:
            raise ConfigError(f"--kafka {name}: it {_OWN[name]}")
        if name.endswith(_SECRETS):
            raise ConfigError(f"--kafka {name}: everybody sees arguments; write it into the file of --command-config")
        if security_only and not name.startswith(SECURITY_PREFIXES):
            raise ConfigError(f"--kafka {name}: this command runs without Spark, and has properties of security only")
        properties[name] = value
    return tuple(properties.items())


def _parse(texts: Mapping[str, str]) -> ClientSecurity:
    protocol = texts.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"security.protocol is {protocol}; it must be one of {', '.join(PROTOCOLS)}")
    mechanism = user = password = ""
    tokens = None
    if protocol.startswith("SASL"):
        mechanism = texts.get("sasl.mechanism", "GSSAPI")
        if mechanism not in MECHANISMS:
            raise ConfigError(f"sasl.mechanism is {mechanism}; kbroker has {', '.join(MECHANISMS)}")
        if mechanism == OAUTHBEARER:
            tokens = _tokens(texts)
        else:
            module = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
            options = parse_jaas("sasl.jaas.config", texts.get("sasl.jaas.config", ""), module)
            user, password = options.get("username", ""), options.get("password", "")
            if not user or not password:
                raise ConfigError("sasl.jaas.config has no username or no password")
    if not protocol.endswith("SSL"):
        return ClientSecurity(mechanism=mechanism, user=user, password=password, tokens=tokens)
    versions = [each for each in TLS_VERSIONS if each in texts.get("ssl.enabled.protocols", ",".join(TLS_VERSIONS))]
    if not versions:
        raise ConfigError(f"ssl.enabled.protocols has none of {', '.join(TLS_VERSIONS)}")
    return ClientSecurity(
        has_tls=True,
        trust_store=_store(texts, "truststore", "certificates"),
        key_store=_store(texts, "keystore", "certificate.chain"),
        key_password=texts.get("ssl.key.password"),
        checks_host=bool(texts.get("ssl.endpoint.identification.algorithm", "https")),
        versions=(versions[0], versions[-1]),
        mechanism=mechanism,
        user=user,
        password=password,
        tokens=tokens,
    )


def _tokens(texts: Mapping[str, str]) -> TokenSource:
    """Client credentials are those of the configs, or of the options of the login module before Kafka 4.1."""
    prefix = "sasl.oauthbearer."
    options = parse_jaas("sasl.jaas.config", texts.get("sasl.jaas.config", ""), OAUTHBEARER_MODULE)
    url = texts.get(f"{prefix}token.endpoint.url", "")
    if not url.startswith(URL_SCHEMES):
        raise ConfigError(f"{prefix}token.endpoint.url must be a URL with one of {', '.join(URL_SCHEMES)}")

    def credential(name: str, option: str) -> str:
        return texts.get(f"{prefix}{name}", options.get(option, ""))

    client_id = credential("client.credentials.client.id", "clientId")
    secret = credential("client.credentials.client.secret", "clientSecret")
    if not url.startswith("file:") and not (client_id and secret):
        raise ConfigError(f"{prefix}client.credentials.client.id or client.secret is missing")
    return TokenSource(url, client_id, secret, credential("scope", "scope"))


def _store(texts: Mapping[str, str], kind: str, certificates: str) -> StoreSettings | None:
    prefix = f"ssl.{kind}."
    store = StoreSettings(
        f"{prefix}location", texts.get(f"{prefix}type", "JKS").upper(), texts.get(f"{prefix}location"),
        texts.get(f"{prefix}password"), texts.get(f"{prefix}key"), texts.get(f"{prefix}{certificates}"),
    )  # fmt: skip
    if store.is_set and store.type not in STORE_TYPES:
        raise ConfigError(f"{prefix}type is {store.type}; kbroker has PEM and PKCS12")
    return store if store.is_set else None
