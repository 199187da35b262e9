"""What a session is set to where nobody says otherwise. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kbroker.pipeline.errors import PipelineError

DEFAULT_MASTER = "local[*]"
LOCAL_HOST = "127.0.0.1"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

_MIB = 1 << 20
_MOST_MEMORY, _LEAST_MEMORY = 4096, 1024  # MiB
# On a laptop or a small server 200 shuffle partitions, Spark's default, are 200 tasks for a handful of rows.
_LEAST_SHUFFLES = 4
# Above so many paths Spark lists them with a job that has a task for each: 732 files take 2.3 s of that, and 0.2 s
# where the driver simply looks.
_LISTED_BY_DRIVER = 100_000

JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def parse_conf(options: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` of --conf, as a mapping; the last one of a name counts. Raises PipelineError."""
    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name.startswith("spark."):
            raise PipelineError(f"--conf {option}: NAME=VALUE is wanted, with a name that begins with spark.")
        found[name] = value
    return found


def is_local(master: str) -> bool:
    """Whether driver and executors are one process of this machine."""
    return master == "local" or master.startswith("local[")


def settings(
    name: str, master: str | None, jars: Sequence[str], conf: Mapping[str, str], memory: int, cores: int
) -> dict[str, str]:
    """Every setting of a session. `memory`: of the machine, in bytes; `cores`: that this process may use.

    `conf` overrides all but what is a list: its spark.jars come on top of `jars`.
    """
    master = master or conf.get("spark.master") or DEFAULT_MASTER
    made = {**_everywhere(name), **(_on_this_machine(memory, cores) if is_local(master) else {}), **conf}
    made["spark.master"] = master
    made["spark.jars"] = ",".join([*jars, *filter(None, conf.get("spark.jars", "").split(","))])
    # A later -D wins, so that a log configuration of the user's is taken.
    made[JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} {made.get(JAVA_OPTIONS, '')}".rstrip()
    return made


def _everywhere(name: str) -> dict[str, str]:
    return {
        "spark.app.name": name,
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _on_this_machine(memory: int, cores: int) -> dict[str, str]:
    """The one process does everything: it may have half of the memory, within bounds, and listens to nobody."""
    mib = min(_MOST_MEMORY, max(_LEAST_MEMORY, memory // 2 // _MIB))
    return {
        "spark.driver.host": LOCAL_HOST,
        "spark.driver.bindAddress": LOCAL_HOST,
        "spark.driver.memory": f"{mib}m",
        "spark.sql.shuffle.partitions": str(max(_LEAST_SHUFFLES, cores)),
        "spark.sql.sources.parallelPartitionDiscovery.threshold": str(_LISTED_BY_DRIVER),
        JAVA_OPTIONS: "-XX:+UseParallelGC -Xshare:auto",
    }
