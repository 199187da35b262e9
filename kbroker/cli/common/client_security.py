"""Options for all connections of a command: --command-config, or --tls-ca and --login.

Passwords are never arguments, which everybody sees in the list of processes.
"""

import os
import sys
from pathlib import Path

from kbroker.cli.common.errors import CliError, exception_text, usage_error
from kbroker.client.security import NO_SECURITY, use_security
from kbroker.common import ClientSecurity, StoreSettings

PASSWORD_VARIABLE = "KBROKER_PASSWORD"


def use_security_options(command_config: str | None, tls_ca: str | None, login: str | None) -> None:
    """Apply the options to all connections of this process. The short ones win. Raises CliError."""
    if tls_ca is not None or login is not None:
        use_security(_short_options(tls_ca, login))
    elif command_config is None:
        use_security(NO_SECURITY)
    else:
        # Imported here to keep other commands fast.
        from kbroker.config.client_properties import parse_client_security
        from kbroker.config.values import ConfigError

        try:
            path = os.path.abspath(command_config)
            use_security(parse_client_security(path, Path(path).read_bytes()))
        except (OSError, ConfigError) as error:
            raise CliError(f"--command-config {command_config}: {exception_text(error)}") from None


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
