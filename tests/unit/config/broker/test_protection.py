"""Configs whose user relies on a protection that kbroker does not have are refused, wherever they are set."""

import pytest

from kbroker.common import KafkaError, Principal
from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.alter import AlterConfigOp, OpType, alter_broker
from kbroker.config.broker.security import AuthorizerSettings
from kbroker.config.config_def import READ_ONLY, NoEffect
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.definitions.security import KEYS, STANDARD_AUTHORIZER
from kbroker.config.sources.static_configs import from_environment
from kbroker.config.values import INT, LONG, format_value
from protocol.errors import ErrorCode

PROTECTION = [key for key in BROKER_CONFIGS.values() if key.no_effect is NoEffect.NO_PROTECTION]
REASON = f"{NoEffect.NO_PROTECTION}, so every client that is served may do everything"


def value_of(name: str) -> str:
    return "5" if BROKER_CONFIGS[name].type in (INT, LONG) else "x.Y"


def test_configs_of_every_protection_are_refused() -> None:
    """A config of a new version of Kafka must be decided upon, too."""
    security = {name for name in BROKER_CONFIGS if name.startswith(("ssl.", "sasl.", "delegation.", "security."))}
    security |= {"connections.max.reauth.ms", "principal.builder.class"}
    security |= {"connection.failed.authentication.delay.ms", "early.start.listeners"}
    others = {name for name in security if BROKER_CONFIGS[name].no_effect is None}
    assert others == {key.name for key in KEYS}
    assert {BROKER_CONFIGS[name].no_effect for name in security - others} == {
        NoEffect.NO_PROTECTION,
        NoEffect.NO_SECURITY,
        NoEffect.BROKER_SECRET,
    }
    assert {key.name for key in PROTECTION} <= security


@pytest.mark.parametrize("prefix", ["", "listener.name.plaintext.", "listener.name.plaintext.scram-sha-256."])
@pytest.mark.parametrize("name", [key.name for key in PROTECTION])
def test_a_broker_does_not_start_with_one(name: str, prefix: str) -> None:
    value = value_of(name)
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load({prefix + name: value})
    shown = "" if BROKER_CONFIGS[name].is_sensitive else f" to {value}"
    assert str(raised.value) == f"cannot set {prefix}{name}{shown}: {REASON}"


@pytest.mark.parametrize("name", [key.name for key in PROTECTION])
def test_the_default_is_accepted(name: str) -> None:
    default = format_value(BROKER_CONFIGS[name].default)
    if default is not None:
        BrokerConfig.load({name: default})


@pytest.mark.parametrize(
    "name", ["sasl.enabled.mechanisms", "authorizer.class.name", "super.users", "ssl.cipher.suites"]
)
def test_an_empty_value_is_accepted(name: str) -> None:
    BrokerConfig.load({name: " "})


def test_the_error_names_each_config() -> None:
    configs = {"sasl.login.class": "c.D", "num.partitions": "2", "principal.builder.class": "a.B"}
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load(configs)
    assert str(raised.value) == f"cannot set sasl.login.class to c.D, principal.builder.class to a.B: {REASON}"


AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER}


def test_the_settings_of_the_authorizer() -> None:
    assert BrokerConfig.load().authorizer is None
    assert BrokerConfig.load(AUTHORIZER).authorizer == AuthorizerSettings((), False)
    users = {"super.users": " User:admin ;;User:CN=a;b:c", "allow.everyone.if.no.acl.found": "true"}
    principals = (Principal("User", "admin"), Principal("User", "CN=a"), Principal("b", "c"))
    assert BrokerConfig.load(AUTHORIZER | users).authorizer == AuthorizerSettings(principals, True)


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
         f"authorizer.class.name is kafka.security.authorizer.AclAuthorizer; kbroker has {STANDARD_AUTHORIZER}"),
        ({"super.users": "User:a"},
         "cannot set super.users without authorizer.class.name: every client may do everything"),
        ({"allow.everyone.if.no.acl.found": "true"},
         "cannot set allow.everyone.if.no.acl.found without authorizer.class.name: every client may do everything"),
        (AUTHORIZER | {"super.users": "User:a;admin"},
         "super.users has admin, which is no principal: write User:admin"),
        ({f"listener.name.plaintext.{name}": value for name, value in AUTHORIZER.items()},
         "cannot set listener.name.plaintext.authorizer.class.name: the authorizer is the same for all listeners, set "
         "authorizer.class.name"),
    ],
)  # fmt: skip
def test_an_authorizer_that_would_not_decide_is_refused(configs: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load(configs)
    assert str(raised.value) == reason


def test_environment_variables_are_refused() -> None:
    configs = from_environment({"KBROKER_SASL_LOGIN_CLASS": "a.B"})
    with pytest.raises(ConfigError, match=r"^cannot set sasl.login.class to a.B"):
        BrokerConfig.load({name: source.text for name, source in configs.items()})


@pytest.mark.parametrize("name", [key.name for key in PROTECTION if key.update_mode is not READ_ONLY])
def test_they_cannot_be_set_at_run_time(name: str) -> None:
    name = f"listener.name.plaintext.{name}"
    value = value_of(name.removeprefix("listener.name.plaintext."))
    with pytest.raises(KafkaError) as raised:
        alter_broker({}, [AlterConfigOp(name, OpType.SET, value)], BrokerConfig.load(), cluster_default=False)
    assert raised.value.code == ErrorCode.INVALID_REQUEST
    assert raised.value.message is not None
    assert raised.value.message.startswith(f"cannot set {name}")


def test_one_that_is_stored_is_reported_and_can_be_removed() -> None:
    """An earlier version has accepted it."""
    stored = {"listener.name.plaintext.ssl.client.auth": "required", "log.cleaner.threads": "2"}
    config, errors = BrokerConfig.load().with_stored_dynamic({}, stored)
    assert config.log_cleaner_threads == 2
    assert [error.split(":")[0] for error in errors] == [
        "The dynamic config listener.name.plaintext.ssl.client.auth is ignored"
    ]
    remove = AlterConfigOp("listener.name.plaintext.ssl.client.auth", OpType.DELETE, None)
    assert alter_broker(stored, [remove], config, cluster_default=False) == {"log.cleaner.threads": "2"}
