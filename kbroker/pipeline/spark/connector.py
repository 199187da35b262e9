"""Spark's Kafka connector: fetched once and kept, or taken from a directory where there is no network.

The jars are fetched by Ivy, which comes with Spark, in a JVM of its own and before Spark starts: Spark's own way
(spark.jars.packages) asks Ivy at every start, and two starts at once disturb each other in its cache.
"""

import os
import re
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.installed import Spark, release
from kbroker.pipeline.spark.java import Java

VERSION = "4.0.0"
SCALA = "2.13"
CONNECTOR = "spark-sql-kafka-0-10"
# The connector and what it needs beyond Spark's own jars.
ARTIFACTS = (
    ("org.apache.spark", f"{CONNECTOR}_{SCALA}", VERSION),
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", VERSION),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
NEEDED = (CONNECTOR, "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")
IVY_SETTINGS = Path(__file__).with_name("ivysettings.xml")
FETCH_S = 600

# Ivy and Maven put the organisation before it or not.
_CONNECTOR_JAR = re.compile(rf"(?:.*[_-])?{re.escape(CONNECTOR)}_(\d+\.\d+)-(\d+\.\d+\.\d+\S*)\.jar")
# Characters that Spark or Ivy reads as a pattern or a separator in a path.
_PATTERN = re.compile(r"[*?\[\]{}\\,]")
_ACCESS = re.compile(r"(?:\w+\.)+(\w+(?:Exception|Error))(?::\s*([^)\n]*))?")
_CAUSES = {
    "UnknownHostException": "the host {} is not known",
    "ConnectException": "{}",
    "SocketTimeoutException": "{}",
    "NoRouteToHostException": "{}",
    "SSLHandshakeException": "{}",
}

Note = Callable[[str], None]


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where the connector is kept: ~/.cache/kbroker/spark-VERSION, or XDG_CACHE_HOME instead of ~/.cache."""
    base = environ.get("XDG_CACHE_HOME", "")
    caches = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return caches / "kbroker" / f"spark-{VERSION}"


def connector_jars(directory: Path, spark: Spark) -> list[str]:
    """The jars of a directory that holds the connector: what spark.jars is set to, as absolute paths.

    Raises PipelineError where it holds none, or one of another Spark or Scala than `spark`, or a damaged jar.
    """
    if not directory.is_dir():
        raise PipelineError(f"{directory}: there is no such directory (kbroker pipeline fetch {directory} makes it)")
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".jar"))
    except OSError as error:
        raise PipelineError(f"{directory}: {error.strerror}") from error
    found = [match for match in map(_CONNECTOR_JAR.fullmatch, names) if match]
    if not found:
        raise PipelineError(f"{directory}: no {CONNECTOR} is there (kbroker pipeline fetch DIR gets it)")
    if len(found) > 1:
        raise PipelineError(f"{directory}: {len(found)} connectors are there: {', '.join(m[0] for m in found)}")
    scala, version = found[0].groups()
    if scala != spark.scala or release(version) != release(spark.version):
        raise PipelineError(
            f"{directory}: {found[0][0]} is for Spark {release(version)} with Scala {scala}, "
            f"and this is Spark {spark.version} with Scala {spark.scala}"
        )
    for stem in NEEDED:
        if not any(stem in name for name in names):
            raise PipelineError(f"{directory}: {stem} is missing there (kbroker pipeline fetch DIR gets all)")
    paths = [directory.absolute() / name for name in names]
    for path in paths:
        _require_literal(path)
        if not zipfile.is_zipfile(path):
            raise PipelineError(f"{path} is damaged: remove it and fetch it again")
    return [str(path) for path in paths]


def kept_jars(spark: Spark, java: Java, environ: Mapping[str, str], settings: Path | None, note: Note) -> list[str]:
    """The jars in the cache, which are fetched when they are not there. `settings`: of Ivy, where not our own."""
    directory = cache_directory(environ)
    _require_literal(directory)
    try:
        return connector_jars(directory, spark)
    except PipelineError:
        note(f"fetching Spark's Kafka connector {VERSION} into {directory}, this once")
    fetch(directory, spark, java, environ, settings)
    return connector_jars(directory, spark)


def fetch(directory: Path, spark: Spark, java: Java, environ: Mapping[str, str], settings: Path | None = None) -> None:
    """Fetches the connector into a directory, which has all of it or nothing new.

    Others may do the same at the same time: each fetches for itself, and jars are put in place by renaming.
    Raises PipelineError, one sentence.
    """
    directory = directory.absolute()  # Ivy takes no other
    _require_literal(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as staging:
            jars = _download(Path(staging), spark, java, environ, settings or IVY_SETTINGS)
            directory.mkdir(exist_ok=True)
            # The connector's own jar comes last: while it is missing nobody takes the directory for whole.
            for jar in sorted(jars, key=lambda path: path.name.startswith(CONNECTOR)):
                os.replace(jar, directory / jar.name)
    except OSError as error:
        raise PipelineError(f"{directory}: cannot be written: {error.strerror or error}") from error


def _require_literal(path: Path) -> None:
    """Raises PipelineError for a path that Spark reads as a pattern: it would load no jars, or those of another
    directory."""
    found = _PATTERN.search(str(path))
    if found is not None:
        raise PipelineError(f"{path}: Spark cannot load jars from a path with {found[0]} in it; use another directory")


def _download(staging: Path, spark: Spark, java: Java, environ: Mapping[str, str], settings: Path) -> list[Path]:
    ivy = next(spark.jars.glob("ivy-*.jar"), None)
    if ivy is None:
        raise PipelineError(f"{spark.jars}: Ivy, which fetches the connector, is not there")
    jars = staging / "jars"
    (staging / "ivy.xml").write_text(_module())
    command = [java.executable, "-XX:TieredStopAtLevel=1", f"-Divy.default.ivy.user.dir={staging}", *_proxy(environ)]
    command += ["-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(settings), "-cache", str(staging / "cache")]
    command += ["-ivy", str(staging / "ivy.xml"), "-types", "jar", "bundle"]
    command += ["-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"not done within {FETCH_S} s") from None
    got = sorted(jars.glob("*.jar")) if jars.is_dir() else []
    if done.returncode != 0 or len(got) != len(ARTIFACTS):
        raise _failed(_reason(done.stdout))
    return got


def _module() -> str:
    """What Ivy is asked for: exactly these modules, none that they name themselves."""
    rows = "\n".join(
        f'    <dependency org="{org}" name="{name}" rev="{version}" conf="default->master" transitive="false"/>'
        for org, name, version in ARTIFACTS
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="kbroker" module="connector"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{rows}\n  </dependencies>\n</ivy-module>\n"
    )


def _proxy(environ: Mapping[str, str]) -> list[str]:
    """Java does not look at https_proxy, where everybody else has it."""
    proxy = urlsplit(environ.get("https_proxy") or environ.get("HTTPS_PROXY") or "")
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


def _reason(output: str) -> str:
    """The first thing in Ivy's report that says why."""
    for name, detail in _ACCESS.findall(output):
        if name in _CAUSES:
            return _CAUSES[name].format(detail.strip() or name)
    unresolved = re.search(r":: (\S+#\S+;\S+): (not found|.*)", output)
    if unresolved:
        return f"{unresolved[1]}: {unresolved[2]}"
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.strip().startswith("at ")]
    return lines[-1] if lines else "Ivy said nothing"


def _failed(reason: str) -> PipelineError:
    return PipelineError(
        f"Spark's Kafka connector could not be fetched: {reason} (where there is a network: "
        "kbroker pipeline fetch DIR; then here: --spark-jars DIR)"
    )
