"""How listeners protect their connections: TLS, SASL, the users of PLAIN, tokens; and what the authorizer needs.

The value of a config for a listener is that with the prefix `listener.name.<listener>.<mechanism>.`, else that with
`listener.name.<listener>.`, else that without a prefix, as in Kafka. What would not protect a listener is refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.common import Principal, StoreSettings
from kbroker.config.broker.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from kbroker.config.broker.listeners import PLAINTEXT, Endpoint
from kbroker.config.definitions.broker import BROKER_CONFIGS, strip_listener_prefix
from kbroker.config.definitions.security import AUTHORIZER_KEYS, STANDARD_AUTHORIZER
from kbroker.config.values import ConfigError, Value
from protocol.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism
from protocol.scram import MECHANISMS as SCRAM_MECHANISMS

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
URL_SCHEMES = ("file:", "http:", "https:")
# What verifies tokens. Kafka's default accepts unsigned ones (CVE-2026-33557), which kbroker never does.
CALLBACK_HANDLER = "sasl.server.callback.handler.class"
TOKEN_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
JAAS = "sasl.jaas.config"
# JKS may also be a PKCS12 file.
STORE_TYPES = ("PEM", "PKCS12", "JKS")
# Configs of TLS, by prefix, and of SASL. The others of these protocols only say how, and protect nothing alone.
_TLS = "ssl."
_OAUTH = "sasl.oauthbearer."
_SASL = (
    "sasl.enabled.mechanisms", JAAS, "connections.max.reauth.ms", CALLBACK_HANDLER, f"{_OAUTH}expected.audience",
    f"{_OAUTH}expected.issuer", f"{_OAUTH}jwks.endpoint.url",
)  # fmt: skip
_PREFIX = "listener.name."
# A user of --add-scram.
_USER = re.compile(r"([A-Z0-9-]+)=\[(.*)\]", re.DOTALL)
_USER_FIELDS = re.compile(r'(name|password|iterations)=("[^"]*"|[^,"]*)(?:,|$)')


class TlsSettings(NamedTuple):
    """`versions`: the lowest and the highest. `prefix`: that of the listener, for error messages.

    `checks_host`: whether a broker checks the host in the certificate of another one.
    """

    prefix: str
    key_store: StoreSettings
    key_password: str | None
    trust_store: StoreSettings
    client_auth: str
    versions: tuple[str, str]
    cipher_suites: tuple[str, ...]
    principal_rules: str
    checks_host: bool

    @property
    def context(self) -> tuple[StoreSettings, str | None, StoreSettings, str, tuple[str, str], tuple[str, ...]]:
        """The parameters of server_context in kbroker/client/key_stores.py."""
        return (
            self.key_store, self.key_password, self.trust_store, self.client_auth, self.versions, self.cipher_suites
        )  # fmt: skip

    @property
    def client_context(
        self,
    ) -> tuple[StoreSettings, str | None, StoreSettings | None, bool, tuple[str, str], tuple[str, ...]]:
        """The parameters of client_context there. As in Kafka, the system's certificates are trusted by default."""
        trust_store = self.trust_store if self.trust_store.is_set else None
        return (
            self.key_store, self.key_password, trust_store, self.checks_host, self.versions, self.cipher_suites
        )  # fmt: skip


class TokenSettings(NamedTuple):
    """How tokens of OAUTHBEARER are verified. `audiences`: empty for any; `issuer`: None for any.

    `jwks_config`: the name of the config of `jwks_url`, which has the keys.
    """

    jwks_config: str
    jwks_url: str
    audiences: tuple[str, ...]
    issuer: str | None
    clock_skew_s: int
    sub_claim: str
    scope_claim: str
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


class SaslSettings(NamedTuple):
    """`mechanisms`: the enabled ones. `plain_users`: passwords by name. `max_reauth_ms`: by mechanism, 0 for never."""

    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str]
    max_reauth_ms: Mapping[str, int]
    max_receive_bytes: int
    failure_delay_ms: int
    tokens: TokenSettings | None = None


class ListenerSecurity(NamedTuple):
    tls: TlsSettings | None
    sasl: SaslSettings | None


NO_SECURITY = ListenerSecurity(None, None)


class AuthorizerSettings(NamedTuple):
    super_users: tuple[Principal, ...]
    allows_everyone_if_no_acl: bool


def authorizer_settings(values: Mapping[str, Value]) -> AuthorizerSettings | None:
    """Return the settings of the authorizer; None without one. Raises ConfigError."""
    defaults = {key.name: key.default for key in AUTHORIZER_KEYS}
    for name, value in values.items():
        base = strip_listener_prefix(name)
        if base != name and base in defaults:
            raise ConfigError(f"cannot set {name}: the authorizer is the same for all listeners, set {base}")
        if base in defaults and value != defaults[base] and not values["authorizer.class.name"]:
            raise ConfigError(f"cannot set {name} without authorizer.class.name: every client may do everything")
    class_name = values["authorizer.class.name"]
    if not class_name:
        return None
    if class_name != STANDARD_AUTHORIZER:
        raise ConfigError(f"authorizer.class.name is {class_name}; kbroker has {STANDARD_AUTHORIZER}")
    texts = [text.strip() for text in str(values["super.users"]).split(";")]
    super_users = []
    for text in filter(None, texts):
        type, colon, name = text.partition(":")
        if not colon:
            raise ConfigError(f"super.users has {text}, which is no principal: write User:{text}")
        super_users.append(Principal(type, name))
    return AuthorizerSettings(tuple(super_users), bool(values["allow.everyone.if.no.acl.found"]))


class _Values:
    """The values of one listener."""

    def __init__(self, values: Mapping[str, Value], listener: str) -> None:
        self.prefix = f"{_PREFIX}{listener.lower()}."
        self._values = values

    def name(self, config: str, mechanism: str = "") -> str:
        """Return the name under which a config is set."""
        names = [f"{self.prefix}{config}"]
        if mechanism:
            names.insert(0, f"{self.prefix}{mechanism.lower()}.{config}")
        return next((name for name in names if name in self._values), config)

    def text(self, config: str, mechanism: str = "") -> str | None:
        value = self._values[self.name(config, mechanism)]
        return None if value is None else str(value)

    def number(self, config: str, mechanism: str = "") -> int:
        value = self._values[self.name(config, mechanism)]
        assert isinstance(value, int)
        return value

    def texts(self, config: str, mechanism: str = "") -> tuple[str, ...]:
        value = self._values[self.name(config, mechanism)]
        assert isinstance(value, tuple)
        return value

    def password(self, config: str, mechanism: str) -> str | None:
        """Return a value that takes effect only with the prefix of the listener and of the mechanism."""
        value = self._values.get(f"{self.prefix}{mechanism.lower()}.{config}")
        return None if value is None else str(value)


def listener_security(values: Mapping[str, Value], listeners: Sequence[Endpoint]) -> Mapping[str, ListenerSecurity]:
    """Return the protection of each listener by name. Raises ConfigError for one that would not protect it."""
    _check_use(values, listeners)
    security = {}
    for listener in listeners:
        own = _Values(values, listener.name)
        protocol = listener.security_protocol
        tls = _tls(own, listener) if protocol.endswith("SSL") else None
        sasl = _sasl(own, listener) if protocol.startswith("SASL") else None
        security[listener.name] = ListenerSecurity(tls, sasl)
    return security


def _check_use(values: Mapping[str, Value], listeners: Sequence[Endpoint]) -> None:
    """Refuse a config that would protect a listener, but that no listener uses: its user relies on it."""
    protocols = {listener.name.lower(): listener.security_protocol for listener in listeners}
    controllers = values["controller.listener.names"]
    ignored = {name.lower() for name in controllers} if isinstance(controllers, tuple) else set()
    for name, value in values.items():
        if not name.startswith((_PREFIX, _TLS, *_SASL)):
            continue
        base = strip_listener_prefix(name)
        is_tls, is_sasl = base.startswith(_TLS), base in _SASL
        key = BROKER_CONFIGS.get(base)
        if key is None or key.no_effect is not None or not (is_tls or is_sasl) or value in (key.default, "", ()):
            continue
        own = name.removeprefix(_PREFIX).partition(".")[0] if name != base else None
        if own in ignored:
            continue
        relevant = list(protocols.values()) if own is None else [protocols.get(own, PLAINTEXT)]
        if not any(each.endswith("SSL") if is_tls else each.startswith("SASL") for each in relevant):
            wanted = "SSL or SASL_SSL" if is_tls else "SASL_PLAINTEXT or SASL_SSL"
            subject = "no listener" if own is None else f"no listener {own.upper()}"
            raise ConfigError(
                f"cannot set {name}: {subject} has the security protocol {wanted}, so it protects nothing"
            )
        if base == JAAS and name.count(".") < 6:
            raise ConfigError(
                f"cannot set {name}: its name needs the prefix of a listener and of a mechanism, for example "
                f"{_PREFIX}sasl_ssl.plain.{JAAS}"
            )


def _tls(own: _Values, listener: Endpoint) -> TlsSettings:
    key_store, trust_store = (
        StoreSettings(
            own.name(f"ssl.{store}.location"),
            (own.text(f"ssl.{store}.type") or "").upper(),
            own.text(f"ssl.{store}.location"),
            own.text(f"ssl.{store}.password"),
            own.text("ssl.keystore.key") if store == "keystore" else None,
            own.text(f"ssl.{store}.{certificates}"),
        )
        for store, certificates in (("keystore", "certificate.chain"), ("truststore", "certificates"))
    )
    for store in (key_store, trust_store):
        if store.is_set and store.type not in STORE_TYPES:
            raise ConfigError(f"the type of {store.config} is {store.type or 'empty'}; kbroker has PEM and PKCS12")
    if not key_store.is_set:
        raise ConfigError(f"Listener {listener} has the security protocol {listener.security_protocol}, which needs a "
                          f"certificate: set {own.prefix}ssl.keystore.location")  # fmt: skip
    client_auth = own.text("ssl.client.auth") or "none"
    if client_auth != "none" and not trust_store.is_set:
        raise ConfigError(
            f"{own.name('ssl.client.auth')} is {client_auth}, which needs trusted certificates: set "
            f"{own.prefix}ssl.truststore.location"
        )
    name = own.name("ssl.enabled.protocols")
    enabled = own.texts("ssl.enabled.protocols")
    unknown = [version for version in enabled if version not in TLS_VERSIONS]
    if unknown or not enabled:
        raise ConfigError(f"{name} has {','.join(unknown) or 'no version'}; kbroker has {', '.join(TLS_VERSIONS)}")
    highest = own.text("ssl.protocol")
    if highest not in ("TLS", *TLS_VERSIONS):
        raise ConfigError(f"{own.name('ssl.protocol')} is {highest}; kbroker has TLS, {', '.join(TLS_VERSIONS)}")
    versions = [each for each in TLS_VERSIONS if each in enabled and (highest == "TLS" or each <= highest)]
    if not versions:
        raise ConfigError(f"{name} has no version up to {own.name('ssl.protocol')}, {highest}")
    identification = own.text("ssl.endpoint.identification.algorithm") or ""
    if identification.lower() not in ("", "https"):
        raise ConfigError(
            f"{own.name('ssl.endpoint.identification.algorithm')} is {identification}; kbroker has https, or empty"
        )
    return TlsSettings(
        own.prefix, key_store, own.text("ssl.key.password"), trust_store, client_auth, (versions[0], versions[-1]),
        own.texts("ssl.cipher.suites"), own.text("ssl.principal.mapping.rules") or "DEFAULT", bool(identification),
    )  # fmt: skip


def _sasl(own: _Values, listener: Endpoint) -> SaslSettings:
    mechanisms, name = own.texts("sasl.enabled.mechanisms"), own.name("sasl.enabled.mechanisms")
    unknown = [mechanism for mechanism in mechanisms if mechanism not in MECHANISMS]
    if unknown or not mechanisms:
        raise ConfigError(
            f"Listener {listener} has the security protocol {listener.security_protocol}, and {name} has "
            f"{','.join(unknown) or 'no mechanism'}; kbroker has {', '.join(MECHANISMS)}"
        )
    users: dict[str, str] = {}
    tokens = None
    for mechanism in mechanisms:
        jaas, jaas_name = own.password(JAAS, mechanism), f"{own.prefix}{mechanism.lower()}.{JAAS}"
        if mechanism == PLAIN:
            if jaas is None:
                raise ConfigError(f"{name} has PLAIN, whose users are missing: set {jaas_name}")
            options = parse_jaas(jaas_name, jaas, PLAIN_MODULE)
            users = {option[5:]: password for option, password in options.items() if option.startswith("user_")}
        elif jaas is not None:
            parse_jaas(jaas_name, jaas, OAUTHBEARER_MODULE if mechanism == OAUTHBEARER else SCRAM_MODULE)
        handler = own.text(CALLBACK_HANDLER, mechanism)
        if handler and (mechanism, handler) != (OAUTHBEARER, TOKEN_VALIDATOR):
            raise ConfigError(
                f"{own.name(CALLBACK_HANDLER, mechanism)} is {handler}; kbroker has only {TOKEN_VALIDATOR}, for "
                f"{own.prefix}{OAUTHBEARER.lower()}.{CALLBACK_HANDLER}"
            )
        if mechanism == OAUTHBEARER:
            tokens = _tokens(own)
    return SaslSettings(
        mechanisms,
        users,
        {mechanism: max(0, own.number("connections.max.reauth.ms", mechanism)) for mechanism in mechanisms},
        own.number("sasl.server.max.receive.size"),
        own.number("connection.failed.authentication.delay.ms"),
        tokens,
    )


def _tokens(own: _Values) -> TokenSettings:
    def name(config: str) -> str:
        return own.name(f"{_OAUTH}{config}", OAUTHBEARER)

    def text(config: str) -> str | None:
        return own.text(f"{_OAUTH}{config}", OAUTHBEARER)

    def number(config: str) -> int:
        return own.number(f"{_OAUTH}{config}", OAUTHBEARER)

    url, issuer = text("jwks.endpoint.url") or "", text("expected.issuer") or None
    audiences = own.texts(f"{_OAUTH}expected.audience", OAUTHBEARER)
    if not url.startswith(URL_SCHEMES):
        raise ConfigError(
            f"{name('jwks.endpoint.url')} is {url or 'not set'}: OAUTHBEARER needs the URL of the keys of its tokens, "
            f"with one of {', '.join(URL_SCHEMES)}; kbroker does not accept unsecured tokens"
        )
    for config, value, claim in (("audience", audiences, "aud"), ("issuer", issuer, "iss")):
        if not value and text(f"allow.unverified.{config}") != "True":
            raise ConfigError(
                f"{name(f'expected.{config}')} is not set: tokens for anyone's {claim} would be accepted; set it, or "
                f"{_OAUTH}allow.unverified.{config}=true"
            )
    return TokenSettings(
        name("jwks.endpoint.url"), url, audiences, issuer, number("clock.skew.seconds"),
        text("sub.claim.name") or "sub", text("scope.claim.name") or "scope", number("jwks.endpoint.refresh.ms"),
        number("jwks.endpoint.retry.backoff.ms"), number("jwks.endpoint.retry.backoff.max.ms"),
    )  # fmt: skip


class FirstUser(NamedTuple):
    """A SCRAM user that exists before the first start, as in Kafka's `kafka-storage format --add-scram`."""

    name: str
    mechanism: ScramMechanism
    password: str
    iterations: int


def parse_first_user(text: str) -> FirstUser:
    """Parse `SCRAM-SHA-256=[name=alice,password=alice-secret,iterations=8192]`.

    Raises ConfigError, whose message has no password.
    """
    match = _USER.fullmatch(text.strip())
    fields = {name: value.strip('"') for name, value in _USER_FIELDS.findall(match[2])} if match is not None else {}
    mechanism = SCRAM_MECHANISMS.get(match[1]) if match is not None else None
    iterations = fields.get("iterations", str(MIN_ITERATIONS))
    is_complete = match is not None and _USER_FIELDS.sub("", match[2]) == ""
    if mechanism is None or not is_complete or not fields.get("name") or not fields.get("password"):
        raise ConfigError("a SCRAM user must have the form SCRAM-SHA-256=[name=NAME,password=PASSWORD]")
    if not iterations.isdecimal() or not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise ConfigError(f"the iterations of a SCRAM user must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return FirstUser(fields["name"], mechanism, fields["password"], int(iterations))
