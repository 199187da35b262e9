"""Listeners with TLS and SASL: what a broker starts with, and what would not protect it, which is refused."""

import pytest

from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.broker.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from kbroker.config.broker.security import CALLBACK_HANDLER, TOKEN_VALIDATOR, FirstUser, parse_first_user
from protocol.scram import ScramMechanism

PLAIN_USERS = f'{PLAIN_MODULE} required username="x" password="y" user_alice="se\\"cret;" user_bob=plain;'
SASL = {
    "listeners": "SEC://h:1",
    "listener.security.protocol.map": "SEC:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sec.plain.sasl.jaas.config": PLAIN_USERS,
}
OAUTH = {name: SASL[name] for name in ("listeners", "listener.security.protocol.map")} | {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "https://provider/keys",
    "sasl.oauthbearer.expected.audience": "kafka",
    "listener.name.sec.oauthbearer.sasl.oauthbearer.expected.issuer": "https://provider",
    "sasl.oauthbearer.expected.issuer": "https://another",
    f"listener.name.sec.oauthbearer.{CALLBACK_HANDLER}": TOKEN_VALIDATOR,
}
TLS = {
    "listeners": "SEC://h:1,PLAINTEXT://h:2",
    "listener.security.protocol.map": "SEC:SSL,PLAINTEXT:PLAINTEXT",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "/k.pem",
    "inter.broker.listener.name": "PLAINTEXT",
}


def test_a_listener_with_sasl() -> None:
    config = BrokerConfig.load(SASL | {"listener.name.sec.scram-sha-256.connections.max.reauth.ms": "7"})
    security = config.listener_security("SEC")
    assert security.tls is None
    assert security.sasl is not None
    assert security.sasl.plain_users == {"alice": 'se"cret;', "bob": "plain"}
    assert security.sasl.max_reauth_ms == {"PLAIN": 0, "SCRAM-SHA-256": 7}
    assert security.sasl.max_receive_bytes == 524_288
    assert "cret" not in repr(config)
    assert config.inter_broker_listener_name == "SEC"


def test_a_listener_with_tokens() -> None:
    sasl = BrokerConfig.load(OAUTH).listener_security("SEC").sasl
    assert sasl is not None
    assert sasl.tokens == (
        "sasl.oauthbearer.jwks.endpoint.url", "https://provider/keys", ("kafka",), "https://provider", 30, "sub",
        "scope", 3_600_000, 100, 10_000,
    )  # fmt: skip
    open_to_all = {"sasl.oauthbearer.expected.audience": "", "sasl.oauthbearer.allow.unverified.audience": "true"}
    sasl = BrokerConfig.load(OAUTH | open_to_all).listener_security("SEC").sasl
    assert sasl is not None
    assert sasl.tokens is not None
    assert sasl.tokens.audiences == ()


def test_a_listener_with_tls() -> None:
    own = {"listener.name.sec.ssl.keystore.location": "/own.pem", "ssl.enabled.protocols": "TLSv1.2"}
    security = BrokerConfig.load(TLS | own)
    tls = security.listener_security("SEC").tls
    assert tls is not None
    assert (tls.key_store.location, tls.versions) == ("/own.pem", ("TLSv1.2", "TLSv1.2"))
    assert security.listener_security("PLAINTEXT") == (None, None)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        (SASL | {"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms has GSSAPI; kbroker has PLAIN, SCRAM"),
        (SASL | {"sasl.enabled.mechanisms": ""}, "has no mechanism"),
        (SASL | {"listener.name.sec.sasl.enabled.mechanisms": "GSSAPI"},
         "listener.name.sec.sasl.enabled.mechanisms has GSSAPI"),
        # Kafka accepts unsigned tokens then (CVE-2026-33557).
        (SASL | {"sasl.enabled.mechanisms": "OAUTHBEARER"}, "jwks.endpoint.url is not set.* unsecured tokens"),
        (OAUTH | {"sasl.oauthbearer.jwks.endpoint.url": "ftp://h/k"}, "jwks.endpoint.url is ftp://h/k: OAUTHBEARER"),
        (OAUTH | {"sasl.oauthbearer.expected.audience": ""}, "expected.audience is not set: tokens for anyone's aud"),
        (OAUTH | {"listener.name.sec.oauthbearer.sasl.oauthbearer.expected.issuer": ""},
         "expected.issuer is not set: tokens for anyone's iss"),
        (OAUTH | {f"listener.name.sec.oauthbearer.{CALLBACK_HANDLER}": "com.example.Validator"},
         f"{CALLBACK_HANDLER} is com.example.Validator; kbroker has only {TOKEN_VALIDATOR}"),
        (SASL | {f"listener.name.sec.{CALLBACK_HANDLER}": TOKEN_VALIDATOR}, f"{CALLBACK_HANDLER} is {TOKEN_VALIDATOR}"),
        ({"sasl.oauthbearer.expected.issuer": "x"}, "so it protects nothing"),
        ({name: SASL[name] for name in list(SASL)[:3]},
         "PLAIN, whose users are missing: set listener.name.sec.plain.sasl.jaas.config"),
        (SASL | {"listener.name.sec.plain.sasl.jaas.config": "com.sun.security.auth.module.JndiLoginModule required;"},
         f"the login module must be {PLAIN_MODULE}"),
        (SASL | {"sasl.jaas.config": PLAIN_USERS}, "cannot set sasl.jaas.config: its name needs the prefix"),
        (SASL | {"listener.name.sec.sasl.jaas.config": PLAIN_USERS}, "its name needs the prefix"),
        (SASL | {"listener.name.typo.plain.sasl.jaas.config": PLAIN_USERS},
         "no listener TYPO has the security protocol SASL_PLAINTEXT or SASL_SSL"),
        (SASL | {"ssl.client.auth": "required"}, "cannot set ssl.client.auth: no listener has .* SSL or SASL_SSL"),
        ({"ssl.client.auth": "required"}, "so it protects nothing"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "so it protects nothing"),
        (TLS | {"listener.name.plaintext.ssl.client.auth": "required"}, "no listener PLAINTEXT has"),
        (TLS | {"listener.name.sec.ssl.keystore.location": ""}, "needs a certificate: set listener.name.sec.ssl.keyst"),
        (TLS | {"ssl.keystore.type": "BKS"}, "the type of ssl.keystore.location is BKS; kbroker has PEM and PKCS12"),
        (TLS | {"ssl.client.auth": "required"}, "ssl.client.auth is required, which needs trusted certificates"),
        (TLS | {"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols has TLSv1.1"),
        (TLS | {"ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLSv1.2"}, "has no version up to ssl.protocol"),
        (TLS | {"ssl.protocol": "SSLv3"}, "ssl.protocol is SSLv3"),
        (TLS | {"ssl.endpoint.identification.algorithm": "LDAPS"}, "algorithm is LDAPS; kbroker has https, or empty"),
    ],
)  # fmt: skip
def test_what_would_not_protect_is_refused(configs: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        BrokerConfig.load(configs)
    assert "cret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_brokers_check_host_names_unless_the_listener_says_not_to() -> None:
    name = "listener.name.sec.ssl.endpoint.identification.algorithm"
    for own, checks_host in (({}, True), ({name: "HTTPS"}, True), ({name: ""}, False)):
        tls = BrokerConfig.load(TLS | own).listener_security("SEC").tls
        assert tls is not None
        assert tls.checks_host is checks_host


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{SCRAM_MODULE} required;", {}),
        (f'{SCRAM_MODULE}  required\n  username="a b"\n  password=\'c"d\' ; ', {"username": "a b", "password": 'c"d'}),
        (f'{SCRAM_MODULE} required password="a\\\\b=\\";";', {"password": 'a\\b=";'}),
    ],
)
def test_jaas_configurations(text: str, options: dict[str, str]) -> None:
    assert parse_jaas("x", text, SCRAM_MODULE) == options


@pytest.mark.parametrize(
    "text",
    ["", f"{SCRAM_MODULE} required", f"{SCRAM_MODULE} required user;", f'{SCRAM_MODULE} required a="b" ;x y;',
     f'{SCRAM_MODULE} maybe a="b";', f'{PLAIN_MODULE} required a="b";', f'{SCRAM_MODULE} required a="b;'],
)  # fmt: skip
def test_invalid_jaas_configurations(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_jaas("x", text, SCRAM_MODULE)


def test_first_users() -> None:
    alice = FirstUser("alice", ScramMechanism.SCRAM_SHA_256, "a b", 8192)
    assert parse_first_user('SCRAM-SHA-256=[name=alice,password="a b",iterations=8192]') == alice
    assert parse_first_user("SCRAM-SHA-512=[password=x=y,name=b]")[2:] == ("x=y", 4096)
    for text in ("", "PLAIN=[name=a,password=b]", "SCRAM-SHA-256=[name=a]", "SCRAM-SHA-256=[name=a,password=s,salt=x]",
                 "SCRAM-SHA-256=[name=a,password=secret,iterations=5]", "SCRAM-SHA-256=name=a,password=b"):  # fmt: skip
        with pytest.raises(ConfigError) as raised:
            parse_first_user(text)
        assert "secret" not in str(raised.value)
