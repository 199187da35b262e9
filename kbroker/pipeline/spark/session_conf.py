"""The Spark properties of a session: kbroker's defaults, the connector, and --conf (pure)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kbroker.pipeline.errors import PipelineError

DEFAULT_MASTER = "local[*]"
LOCAL_HOST = "127.0.0.1"
LOG4J_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_MIB = 1 << 20
_MAX_DRIVER_MIB, _MIN_DRIVER_MIB = 4096, 1024
# Spark's default of 200 shuffle partitions starts 200 tasks for a few rows.
_MIN_SHUFFLE_PARTITIONS = 4
# With more paths than this, Spark lists them in a job with a task for each: 2.3 s for 732 files, and 0.2 s when the
# driver lists them.
_MAX_PATHS_LISTED_BY_DRIVER = 100_000


def parse_conf(options: Sequence[str]) -> dict[str, str]:
    """Parse the `NAME=VALUE` of --conf; the last one of a name applies. Raises PipelineError."""
    conf = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.startswith("spark."):
            raise PipelineError(f"--conf must be NAME=VALUE with a NAME that begins with spark., not {option!r}")
        conf[name] = value
    return conf


def is_local(master: str) -> bool:
    """Return whether the driver is also the only executor."""
    return master == "local" or master.startswith("local[")


def session_conf(
    name: str, master: str | None, jars: Sequence[str], conf: Mapping[str, str], memory_bytes: int, cores: int
) -> dict[str, str]:
    """Return all properties of a session. `memory_bytes`: the machine's; `cores`: those that this process may use.

    `conf` overrides everything but `master` and `jars`; its spark.jars are added to `jars`.
    """
    master = master or conf.get("spark.master") or DEFAULT_MASTER
    properties = {**_defaults(name), **(_local_defaults(memory_bytes, cores) if is_local(master) else {}), **conf}
    properties["spark.master"] = master
    properties["spark.jars"] = ",".join([*jars, *filter(None, conf.get("spark.jars", "").split(","))])
    # It comes first, because the last -D of a name applies: conf may name another log configuration.
    log4j = f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()}"
    properties[JAVA_OPTIONS] = f"{log4j} {properties.get(JAVA_OPTIONS, '')}".rstrip()
    return properties


def _defaults(name: str) -> dict[str, str]:
    return {
        "spark.app.name": name,
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",  # Iceberg's name of it is s3
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _local_defaults(memory_bytes: int, cores: int) -> dict[str, str]:
    """Return defaults for local mode: half of the memory within bounds, and only the loopback address."""
    driver_mib = min(_MAX_DRIVER_MIB, max(_MIN_DRIVER_MIB, memory_bytes // 2 // _MIB))
    return {
        "spark.driver.host": LOCAL_HOST,
        "spark.driver.bindAddress": LOCAL_HOST,
        "spark.driver.memory": f"{driver_mib}m",
        "spark.sql.shuffle.partitions": str(max(_MIN_SHUFFLE_PARTITIONS, cores)),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": str(_MAX_PATHS_LISTED_BY_DRIVER),
        JAVA_OPTIONS: "-XX:+UseParallelGC -Xshare:auto",
    }
