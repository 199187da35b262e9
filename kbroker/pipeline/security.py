"""How the pipeline reaches secured listeners: Spark's Kafka connector, and kbroker's own client on executors.

Both use the file of --command-config, which must be at the same path on all machines of the Spark cluster. A secret
never becomes an option of Spark, whose plans, event log and web pages show options: Kafka's client replaces a
reference by the property in the file (KIP-297, KIP-421).
"""

from pathlib import Path

from kbroker.client.security import NO_SECURITY, current_security, use_security
from kbroker.config.client_properties import client_properties, parse_client_security
from kbroker.config.values import ConfigError
from kbroker.pipeline.errors import PipelineError

_PREFIXES = ("security.", "sasl.", "ssl.")
# Properties that say how to connect, and are no secrets. All others are references.
_SHOWN = {
    "security.protocol", "sasl.mechanism", "ssl.truststore.location", "ssl.truststore.type", "ssl.keystore.location",
    "ssl.keystore.type", "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm",
}  # fmt: skip
_PROVIDER = {
    "kafka.config.providers": "file",
    "kafka.config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}


def kafka_options(bootstrap: str, file: str | None = None) -> dict[str, str]:
    """Return the options of Spark's Kafka source and sink. `file`: by default that of this process.

    Raises PipelineError for a file that cannot be read.
    """
    file = current_security().file if file is None else file
    options = {"kafka.bootstrap.servers": bootstrap}
    if not file:
        return options
    try:
        properties = client_properties(file, Path(file).read_bytes())
    except (OSError, ConfigError) as error:
        raise PipelineError(f"{file}: {error}") from None
    for name, text in properties.items():
        if name.startswith(_PREFIXES):
            options[f"kafka.{name}"] = text if name in _SHOWN else f"${{file:{file}:{name}}}"
    return options | _PROVIDER


def use_security_file(file: str) -> None:
    """Connect as the driver does, in a task on an executor. Raises PipelineError."""
    try:
        use_security(parse_client_security(file, Path(file).read_bytes()) if file else NO_SECURITY)
    except (OSError, ConfigError) as error:
        raise PipelineError(f"{file}: {error}") from None
