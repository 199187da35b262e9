"""Finds the installed Spark and the Java that runs it, and checks that kbroker supports their versions.

Spark itself would fail with stack traces.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from kbroker.common import install_command
from kbroker.pipeline.errors import PipelineError

SUPPORTED = ("4.0", "4.1")

_CORE_JAR = re.compile(r"spark-core_(\d+\.\d+)-(\d+\.\d+\.\d+\S*)\.jar")


class SparkInstallation(NamedTuple):
    home: Path
    version: str  # 4.0.5
    scala: str  # 2.13

    @property
    def jars(self) -> Path:
        return self.home / "jars"


def require_spark(environ: Mapping[str, str]) -> SparkInstallation:
    """Return the Spark that pyspark starts: that of SPARK_HOME, else pyspark's own.

    Raises PipelineError if there is none, or if its version is not supported.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PipelineError(f"Spark is not installed: {install_command('spark')}")
    from pyspark import __version__ as version

    if minor_version(version) not in SUPPORTED:
        raise PipelineError(
            f"pyspark {version} is installed, but kbroker requires {' or '.join(SUPPORTED)}: {install_command('spark')}"
        )
    spark_home = environ.get("SPARK_HOME", "")
    home = Path(spark_home or os.path.dirname(spec.origin))
    core_jar = next((match for match in map(_CORE_JAR.fullmatch, _list_names(home / "jars")) if match), None)
    if core_jar is None:
        source = "SPARK_HOME" if spark_home else "the directory of pyspark"
        raise PipelineError(f"{source} is {home}, which has no jars/spark-core: {install_command('spark')}")
    scala, home_version = core_jar.groups()
    if minor_version(home_version) != minor_version(version):
        raise PipelineError(f"SPARK_HOME has Spark {home_version}, but pyspark is {version}: unset SPARK_HOME")
    return SparkInstallation(home, home_version, scala)


def minor_version(version: str) -> str:
    """Return 4.0 for 4.0.5. Spark and its connector must have the same minor version."""
    return ".".join(version.split(".")[:2])


def _list_names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


# Spark 4.0 is compiled for Java 17. Java 23 removed Subject.getSubject, which its Hadoop needs.
OLDEST, NEWEST = 17, 22
REQUIRED = f"Spark requires Java {OLDEST} to {NEWEST}"
_VERSION_TIMEOUT_S = 30

_QUOTED = re.compile(r'"([^"]+)"')
_VERSION = re.compile(r"(?:1\.)?(\d+)")


class JavaInstallation(NamedTuple):
    executable: str
    version: int  # 17, 21, ...


def require_java(environ: Mapping[str, str]) -> JavaInstallation:
    """Return the Java that Spark's scripts use: that of JAVA_HOME, else the first in PATH.

    Raises PipelineError if there is none, or if its version is not supported.
    """
    executable, variable = _find_executable(environ)
    text = _version_text(executable)
    match = _VERSION.match(text)
    if match is None:
        raise PipelineError(f"{REQUIRED}, but {executable} (from {variable}) does not print its version")
    version = int(match[1])
    if not OLDEST <= version <= NEWEST:
        raise PipelineError(
            f"{REQUIRED}, but {executable} (from {variable}) is Java {text}: set JAVA_HOME to another installation"
        )
    return JavaInstallation(executable, version)


def _find_executable(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the executable, and the environment variable that names it."""
    home = environ.get("JAVA_HOME", "")
    if home:
        executable = os.path.join(home, "bin", "java")
        if not os.access(executable, os.X_OK):
            raise PipelineError(f"{REQUIRED}, but JAVA_HOME is {home}, which has no bin/java")
        return executable, "JAVA_HOME"
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise PipelineError(f"{REQUIRED}, but there is none: no java in PATH, and JAVA_HOME is not set")
    return found, "PATH"


def _version_text(executable: str) -> str:
    """Return the version in the installation's `release` file, which is faster than starting the program."""
    try:
        release_file = Path(os.path.realpath(executable)).parents[1] / "release"
        for line in release_file.read_text().splitlines():
            if line.startswith("JAVA_VERSION="):
                return line.partition("=")[2].strip('" ')
    except (OSError, UnicodeDecodeError):
        pass
    return _printed_version(executable)


def _printed_version(executable: str) -> str:
    try:
        process = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _QUOTED.search(process.stderr)
    return match[1] if match else ""


class ConnectorVersion(NamedTuple):
    """A version of Spark's Kafka connector, and of its dependencies that are not among Spark's own jars."""

    spark: str
    kafka_clients: str
    commons_pool: str

    @property
    def artifacts(self) -> tuple[tuple[str, str, str], ...]:
        """Organisation, name and version of each jar."""
        return (
            ("org.apache.spark", f"{CONNECTOR}_{SCALA}", self.spark),
            ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", self.spark),
            ("org.apache.kafka", "kafka-clients", self.kafka_clients),
            ("org.apache.commons", "commons-pool2", self.commons_pool),
        )


SCALA = "2.13"
CONNECTOR = "spark-sql-kafka-0-10"
CONNECTOR_VERSIONS = {
    "4.0": ConnectorVersion("4.0.0", "3.9.0", "2.12.0"),
    "4.1": ConnectorVersion("4.1.1", "3.9.1", "2.12.1"),
}
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


def cache_directory(environ: Mapping[str, str], spark: SparkInstallation) -> Path:
    """Return the directory of downloaded jars: kbroker/spark-VERSION in XDG_CACHE_HOME, else in ~/.cache."""
    base = environ.get("XDG_CACHE_HOME", "")
    caches = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return caches / "kbroker" / f"spark-{connector_version(spark).spark}"


def connector_version(spark: SparkInstallation) -> ConnectorVersion:
    return CONNECTOR_VERSIONS[minor_version(spark.version)]


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
    directory = cache_directory(environ, spark)
    _require_literal(directory)
    try:
        return connector_jars(directory, spark)
    except PipelineError:
        note(f"downloading Spark's Kafka connector {connector_version(spark).spark} once, to {directory}")
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
    artifacts = connector_version(spark).artifacts
    (staging / "ivy.xml").write_text(_ivy_module(artifacts))
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
    if ivy_run.returncode != 0 or len(downloaded) != len(artifacts):
        raise _download_error(_ivy_error(ivy_run.stdout))
    return downloaded


def _ivy_module(artifacts: Sequence[tuple[str, str, str]]) -> str:
    """Return an ivy.xml with exactly these artifacts, without their transitive dependencies."""
    rows = "\n".join(
        f'    <dependency org="{org}" name="{name}" rev="{version}" conf="default->master" transitive="false"/>'
        for org, name, version in artifacts
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
