"""JAAS configurations, as far as brokers and clients need them: one login module with its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";

Only modules that are known are accepted: in Java, other ones have run code of a client's choice (CVE-2023-25194).
"""

import re
from collections.abc import Mapping

from kbroker.config.values import ConfigError

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

_STRING = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s;"\'=]+'
_ENTRY = re.compile(rf"\s*([\w.$]+)\s+(\w+)((?:\s+[\w.$-]+\s*=\s*(?:{_STRING}))*)\s*;\s*")
_OPTION = re.compile(rf"([\w.$-]+)\s*=\s*({_STRING})")
_FLAGS = ("required", "requisite", "sufficient", "optional")


def parse_jaas(name: str, text: str, module: str) -> Mapping[str, str]:
    """Return the options of config `name`, which must be those of `module`. Raises ConfigError without its content."""
    match = _ENTRY.fullmatch(text)
    if match is None or match[2].lower() not in _FLAGS:
        raise ConfigError(f'Invalid value for configuration {name}: it must have the form {module} required NAME="..";')
    if match[1] != module:
        raise ConfigError(f"Invalid value for configuration {name}: the login module must be {module}")
    return {option: _unquote(value) for option, value in _OPTION.findall(match[3])}


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] in "\"'" else text
