"""How the pipeline reaches secured listeners: Spark's Kafka connector, and kbroker's own client on executors.

Both use the file of --command-config, which must be at the same path on all machines of the Spark cluster, and the
properties of --kafka. A secret never becomes an option of Spark, whose plans, event log and web pages show options:
Kafka's client replaces a reference by the property in the file (KIP-297, KIP-421).
"""

from collections.abc import Sequence
from pathlib import Path

from kbroker.client.security import NO_SECURITY, current_security, use_security
from kbroker.config.client_properties import SECURITY_PREFIXES, client_properties, parse_client_security
from kbroker.config.values import ConfigError
from kbroker.pipeline.errors import PipelineError

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
    own = {} if file is not None else {f"kafka.{name}": text for name, text in current_security().properties}
    file = current_security().file if file is None else file
    options = {"kafka.bootstrap.servers": bootstrap}
    if not file:
        return options | own
    try:
        properties = client_properties(file, Path(file).read_bytes())
    except (OSError, ConfigError) as error:
        raise PipelineError(f"{file}: {error}") from None
    for name, text in properties.items():
        if name.startswith(SECURITY_PREFIXES):
            options[f"kafka.{name}"] = text if name in _SHOWN else f"${{file:{file}:{name}}}"
    return options | own | _PROVIDER


def use_security_file(file: str, properties: Sequence[tuple[str, str]] = ()) -> None:
    """Connect as the driver does, in a task on an executor: with its file and --kafka. Raises PipelineError."""
    try:
        data = Path(file).read_bytes() if file else b""
        use_security(parse_client_security(file, data, properties) if file or properties else NO_SECURITY)
    except (OSError, ConfigError) as error:
        raise PipelineError(f"{file}: {error}") from None
