"""Options for all connections of a command: --command-config and --kafka, or --tls-ca and --login.

Passwords are never arguments, which everybody sees in the list of processes.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kbroker.cli.common.errors import CliError, exception_text, usage_error
from kbroker.client.security import NO_SECURITY, use_security
from kbroker.common import ClientSecurity, StoreSettings

PASSWORD_VARIABLE = "KBROKER_PASSWORD"


def use_security_options(
    command_config: str | None = None,
    tls_ca: str | None = None,
    login: str | None = None,
    kafka: Sequence[str] | None = None,
    *,
    has_spark: bool = False,
) -> None:
    """Apply the options to all connections of this process. The short ones win, and then --kafka. Raises CliError."""
    if tls_ca is not None or login is not None:
        use_security(_short_options(tls_ca, login))
    elif command_config is None and not kafka:
        use_security(NO_SECURITY)
    else:
        # Imported here to keep other commands fast.
        from kbroker.config.client_properties import parse_client_security, parse_kafka_options
        from kbroker.config.values import ConfigError

        try:
            properties = parse_kafka_options(kafka or (), not has_spark)
        except ConfigError as error:
            raise usage_error(str(error)) from None
        try:
            path = os.path.abspath(command_config) if command_config else ""
            use_security(parse_client_security(path, Path(path).read_bytes() if path else b"", properties))
        except (OSError, ConfigError) as error:
            source = f"--command-config {command_config}" if command_config else "--kafka"
            raise CliError(f"{source}: {exception_text(error)}") from None


def _short_options(tls_ca: str | None, login: str | None) -> ClientSecurity:
    """Return TLS, since passwords must not cross a network in clear, and a login with SCRAM-SHA-512."""
    trust_store = None if tls_ca is None else StoreSettings("--tls-ca", "PEM", os.path.abspath(tls_ca))
    security = ClientSecurity(has_tls=True, trust_store=trust_store)
    if login is None:
        return security
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        if not sys.stdin.isatty():
            raise usage_error(f"--login needs the password in {PASSWORD_VARIABLE}, or a terminal")
        from getpass import getpass

        password = getpass(f"password of {login}: ")
    return security._replace(mechanism="SCRAM-SHA-512", user=login, password=password)
