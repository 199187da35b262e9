"""--command-config: a file with the security properties of Kafka's clients, for all connections of a command."""

from pathlib import Path

from kbroker.cli.common.errors import CliError, exception_text
from kbroker.client.security import NO_SECURITY, ClientSecurity

_current = NO_SECURITY


def client_security() -> ClientSecurity:
    """Return how the connections of this command are protected."""
    return _current


def use_command_config(path: str | None) -> None:
    """Apply a file to all connections of this process. Raises CliError."""
    global _current
    if path is None:
        _current = NO_SECURITY
        return
    # Imported here to keep other commands fast.
    from kbroker.cli.common.client_properties import parse_client_security
    from kbroker.config.sources.files import parse_properties_file
    from kbroker.config.values import ConfigError

    try:
        properties = parse_properties_file(path, Path(path).read_bytes())
        _current = parse_client_security({name: config.text for name, config in properties.items()})
    except (OSError, ConfigError) as error:
        raise CliError(f"--command-config {path}: {exception_text(error)}") from None
