"""Finds or downloads the jars of Spark's Kafka connector.

Ivy, which is part of Spark, downloads them in a separate JVM before Spark starts. Spark's own spark.jars.packages runs
Ivy at every start, and two simultaneous starts corrupt its cache.
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
from kbroker.pipeline.spark.installation import JavaInstallation, SparkInstallation, minor_version

VERSION = "4.0.0"
SCALA = "2.13"
CONNECTOR = "spark-sql-kafka-0-10"
# The connector and its dependencies that are not among Spark's own jars.
ARTIFACTS = (
    ("org.apache.spark", f"{CONNECTOR}_{SCALA}", VERSION),
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", VERSION),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
REQUIRED_JARS = (CONNECTOR, "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")
IVY_SETTINGS = Path(__file__).with_name("ivysettings.xml")
FETCH_TIMEOUT_S = 600

# Ivy puts the organisation before the name, Maven does not.
_CONNECTOR_JAR = re.compile(rf"(?:.*[_-])?{re.escape(CONNECTOR)}_(\d+\.\d+)-(\d+\.\d+\.\d+\S*)\.jar")
# Characters of a path that Spark or Ivy interprets as a glob pattern or a separator.
_GLOB_CHARACTER = re.compile(r"[*?\[\]{}\\,]")
_IVY_EXCEPTION = re.compile(r"(?:\w+\.)+(\w+(?:Exception|Error))(?::\s*([^)\n]*))?")
_NETWORK_ERRORS = {
    "UnknownHostException": "unknown host {}",
    "ConnectException": "{}",
    "SocketTimeoutException": "{}",
    "NoRouteToHostException": "{}",
    "SSLHandshakeException": "{}",
}


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of downloaded jars: kbroker/spark-VERSION in XDG_CACHE_HOME, else in ~/.cache."""
    base = environ.get("XDG_CACHE_HOME", "")
    caches = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return caches / "kbroker" / f"spark-{VERSION}"


def connector_jars(directory: Path, spark: SparkInstallation) -> list[str]:
    """Return the absolute paths of all jars in a directory with the connector, for spark.jars.

    Raises PipelineError if the connector or a dependency is missing, is for another version of Spark or Scala, or if
    a jar is damaged.
    """
    if not directory.is_dir():
        raise PipelineError(f"{directory} does not exist (kbroker pipeline fetch {directory} creates it)")
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(".jar"))
    except OSError as error:
        raise PipelineError(f"{directory}: {error.strerror}") from error
    found = [match for match in map(_CONNECTOR_JAR.fullmatch, names) if match]
    if not found:
        raise PipelineError(f"{directory}: no {CONNECTOR} jar (kbroker pipeline fetch DIR downloads it)")
    if len(found) > 1:
        raise PipelineError(
            f"{directory}: expected one {CONNECTOR} jar, not {len(found)}: {', '.join(m[0] for m in found)}"
        )
    scala, version = found[0].groups()
    if scala != spark.scala or minor_version(version) != minor_version(spark.version):
        raise PipelineError(
            f"{directory}: {found[0][0]} is for Spark {minor_version(version)} with Scala {scala}, "
            f"but Spark {spark.version} with Scala {spark.scala} is installed"
        )
    for stem in REQUIRED_JARS:
        if not any(stem in name for name in names):
            raise PipelineError(f"{directory}: {stem} is missing (kbroker pipeline fetch DIR downloads it)")
    paths = [directory.absolute() / name for name in names]
    for path in paths:
        _require_literal(path)
        if not zipfile.is_zipfile(path):
            raise PipelineError(f"{path} is damaged: delete it and download it again")
    return [str(path) for path in paths]


def cached_jars(
    spark: SparkInstallation,
    java: JavaInstallation,
    environ: Mapping[str, str],
    settings: Path | None,
    note: Callable[[str], None],
) -> list[str]:
    """Return the jars in the cache, after downloading them if necessary. `settings`: a file with settings for Ivy."""
    directory = cache_directory(environ)
    _require_literal(directory)
    try:
        return connector_jars(directory, spark)
    except PipelineError:
        note(f"downloading Spark's Kafka connector {VERSION} once, to {directory}")
    fetch_connector(directory, spark, java, environ, settings)
    return connector_jars(directory, spark)


def fetch_connector(
    directory: Path,
    spark: SparkInstallation,
    java: JavaInstallation,
    environ: Mapping[str, str],
    settings: Path | None = None,
) -> None:
    """Download the connector into a directory. It receives all jars or none.

    Several processes may do so at the same time: each downloads all jars and renames them into the directory. Raises
    PipelineError.
    """
    directory = directory.absolute()  # Ivy fails on relative paths
    _require_literal(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as staging:
            jars = _download(Path(staging), spark, java, environ, settings or IVY_SETTINGS)
            directory.mkdir(exist_ok=True)
            # The connector's jar comes last: without it, other processes treat the directory as incomplete.
            for jar in sorted(jars, key=lambda path: path.name.startswith(CONNECTOR)):
                os.replace(jar, directory / jar.name)
    except OSError as error:
        raise PipelineError(f"{directory}: cannot be written: {error.strerror or error}") from error


def _require_literal(path: Path) -> None:
    """Raise PipelineError for a path that Spark interprets as a pattern: it would load no jars, or other jars."""
    found = _GLOB_CHARACTER.search(str(path))
    if found is not None:
        raise PipelineError(f"{path}: Spark cannot load jars from a path with {found[0]}: use another directory")


def _download(
    staging: Path, spark: SparkInstallation, java: JavaInstallation, environ: Mapping[str, str], settings: Path
) -> list[Path]:
    ivy = next(spark.jars.glob("ivy-*.jar"), None)
    if ivy is None:
        raise PipelineError(f"{spark.jars}: no ivy jar, which downloads the connector")
    jars = staging / "jars"
    (staging / "ivy.xml").write_text(_ivy_module())
    command = [
        java.executable,
        "-XX:TieredStopAtLevel=1",
        f"-Divy.default.ivy.user.dir={staging}",
        *_proxy_options(environ),
    ]
    command += ["-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(settings), "-cache", str(staging / "cache")]
    command += ["-ivy", str(staging / "ivy.xml"), "-types", "jar", "bundle"]
    command += ["-retrieve", f"{jars}/[artifact]-[revision].[ext]"]
    try:
        ivy_run = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _download_error(f"it took longer than {FETCH_TIMEOUT_S} s") from None
    downloaded = sorted(jars.glob("*.jar")) if jars.is_dir() else []
    if ivy_run.returncode != 0 or len(downloaded) != len(ARTIFACTS):
        raise _download_error(_ivy_error(ivy_run.stdout))
    return downloaded


def _ivy_module() -> str:
    """Return an ivy.xml with exactly ARTIFACTS, without their transitive dependencies."""
    rows = "\n".join(
        f'    <dependency org="{org}" name="{name}" rev="{version}" conf="default->master" transitive="false"/>'
        for org, name, version in ARTIFACTS
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="kbroker" module="connector"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{rows}\n  </dependencies>\n</ivy-module>\n"
    )


def _proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Return the proxy as Java options: Java ignores the environment variable https_proxy."""
    proxy = urlsplit(environ.get("https_proxy") or environ.get("HTTPS_PROXY") or "")
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


def _ivy_error(output: str) -> str:
    """Return the cause of a failure from Ivy's output."""
    for name, detail in _IVY_EXCEPTION.findall(output):
        if name in _NETWORK_ERRORS:
            return _NETWORK_ERRORS[name].format(detail.strip() or name)
    unresolved = re.search(r":: (\S+#\S+;\S+): (not found|.*)", output)
    if unresolved:
        return f"{unresolved[1]}: {unresolved[2]}"
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.strip().startswith("at ")]
    return lines[-1] if lines else "Ivy printed nothing"


def _download_error(reason: str) -> PipelineError:
    return PipelineError(
        f"cannot download Spark's Kafka connector: {reason} (on a machine with network access, run kbroker pipeline "
        "fetch DIR; then copy DIR to this machine and use --spark-jars DIR)"
    )
