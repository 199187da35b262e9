"""The connector's jars: checks of a directory, downloads. A shell script stands in for Java with Ivy."""

import os
import threading
import zipfile
from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import installation as connector
from kbroker.pipeline.spark.installation import JavaInstallation, SparkInstallation

ARTIFACTS = connector.CONNECTOR_VERSIONS["4.0"].artifacts
IVY_NAMES = [f"{name}-{version}.jar" for _, name, version in ARTIFACTS]


@pytest.fixture
def spark(tmp_path: Path) -> SparkInstallation:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "ivy-2.5.3.jar").touch()
    return SparkInstallation(tmp_path / "spark", "4.0.5", "2.13")


def make_jars(directory: Path, names: list[str]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        with zipfile.ZipFile(directory / name, "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", "")
    return directory


def fake_ivy(tmp_path: Path, script: str, complete: Path | None = None) -> JavaInstallation:
    """Return a `java` that runs a script with Ivy's output directory as $target and its settings file as $settings."""
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n"
        '  if [ "$1" = -retrieve ]; then target=$(dirname "$2"); fi\n'
        '  if [ "$1" = -settings ]; then settings=$2; fi\n  shift\ndone\n'
        f"complete={complete}\n{script}\n"
    )
    java.chmod(0o755)
    return JavaInstallation(str(java), 17)


# As Ivy, fails on a relative path.
COPY = 'case "$target" in /*) ;; *) exit 1;; esac; mkdir -p "$target" && cp "$complete"/*.jar "$target"'


def error_of(directory: Path, spark: SparkInstallation) -> str:
    with pytest.raises(PipelineError) as caught:
        connector.connector_jars(directory, spark)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{directory}: ").removeprefix(f"{directory} ")


def test_jars_are_found_by_mavens_names_and_by_sparks(tmp_path: Path, spark: SparkInstallation):
    directory = make_jars(tmp_path / "maven", [*IVY_NAMES, "delta-4.0.jar"])
    assert connector.connector_jars(directory, spark) == sorted(str(path) for path in directory.iterdir())
    names = [f"{org}_{name}-{version}.jar" for org, name, version in ARTIFACTS]
    directory = make_jars(tmp_path / "ivy", names)
    assert len(connector.connector_jars(directory, spark)) == 4


def test_jars_of_a_relative_directory_have_absolute_paths(
    tmp_path: Path, spark: SparkInstallation, monkeypatch: pytest.MonkeyPatch
):
    make_jars(tmp_path / "jars", IVY_NAMES)
    monkeypatch.chdir(tmp_path)
    assert all(os.path.isabs(jar) for jar in connector.connector_jars(Path("jars"), spark))


@pytest.mark.parametrize("name", ["x[1]", "a*", "a?", "{a,b}", "a,b", "a\\b"])
def test_a_path_with_glob_characters_is_an_error(tmp_path: Path, spark: SparkInstallation, name: str):
    message = f"Spark cannot load jars from a path with {next(c for c in name if not c.isalnum())}:"
    assert message in error_of(make_jars(tmp_path / name, IVY_NAMES), spark)
    java = fake_ivy(tmp_path, "exit 1")
    with pytest.raises(PipelineError) as caught:
        connector.fetch_connector(tmp_path / name, spark, java, {})
    assert message in str(caught.value)
    with pytest.raises(PipelineError) as caught:
        connector.cached_jars(spark, java, {"XDG_CACHE_HOME": str(tmp_path / name)}, None, print)
    assert message in str(caught.value)


def test_errors_of_incomplete_directories(tmp_path: Path, spark: SparkInstallation):
    assert error_of(tmp_path / "none", spark).startswith("does not exist")
    assert error_of(make_jars(tmp_path / "other", ["delta.jar"]), spark).startswith("no spark-sql-kafka-0-10 jar")
    part = make_jars(tmp_path / "part", [name for name in IVY_NAMES if not name.startswith("kafka-clients")])
    assert error_of(part, spark).startswith("kafka-clients is missing")
    both = make_jars(tmp_path / "both", [*IVY_NAMES, "spark-sql-kafka-0-10_2.13-4.0.5.jar"])
    assert error_of(both, spark).startswith("expected one spark-sql-kafka-0-10 jar, not 2")


@pytest.mark.parametrize(
    ("jar", "versions"),
    [
        ("spark-sql-kafka-0-10_2.12-3.5.1.jar", "is for Spark 3.5 with Scala 2.12"),
        ("spark-sql-kafka-0-10_2.13-4.1.0.jar", "is for Spark 4.1 with Scala 2.13"),
        ("spark-sql-kafka-0-10_2.12-4.0.0.jar", "is for Spark 4.0 with Scala 2.12"),
    ],
)
def test_a_connector_for_another_spark_or_scala_is_an_error(
    tmp_path: Path, spark: SparkInstallation, jar: str, versions: str
):
    directory = make_jars(tmp_path / "jars", [jar, *IVY_NAMES[1:]])
    assert error_of(directory, spark) == f"{jar} {versions}, but Spark 4.0.5 with Scala 2.13 is installed"


def test_a_damaged_jar_is_an_error(tmp_path: Path, spark: SparkInstallation):
    directory = make_jars(tmp_path / "jars", IVY_NAMES)
    jar = directory / IVY_NAMES[2]
    jar.write_bytes(jar.read_bytes()[:20])
    assert error_of(directory, spark) == f"{jar} is damaged: delete it and download it again"


@pytest.mark.parametrize(("version", "name"), [("4.0.5", "spark-4.0.0"), ("4.1.2", "spark-4.1.1")])
def test_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, name: str):
    """Each version of Spark has a connector of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    spark, directory = SparkInstallation(tmp_path, version, "2.13"), f"kbroker/{name}"
    assert connector.cache_directory({}, spark) == tmp_path / ".cache" / directory
    assert connector.cache_directory({"XDG_CACHE_HOME": "relative"}, spark) == tmp_path / ".cache" / directory
    assert connector.cache_directory({"XDG_CACHE_HOME": "/caches"}, spark) == Path("/caches") / directory


def test_the_connector_is_downloaded_once_and_again_after_damage(tmp_path: Path, spark: SparkInstallation):
    java = fake_ivy(tmp_path, COPY, make_jars(tmp_path / "complete", IVY_NAMES))
    environ, notes = {"XDG_CACHE_HOME": str(tmp_path / "caches")}, []
    first = connector.cached_jars(spark, java, environ, None, notes.append)
    assert [os.path.basename(jar) for jar in first] == sorted(IVY_NAMES)
    unused = JavaInstallation("/nowhere/java", 17)
    assert connector.cached_jars(spark, unused, environ, None, notes.append) == first
    assert len(notes) == 1
    Path(first[0]).write_bytes(b"")
    assert connector.cached_jars(spark, java, environ, None, notes.append) == first
    assert Path(first[0]).stat().st_size > 0
    assert os.listdir(tmp_path / "caches" / "kbroker") == ["spark-4.0.0"]


def test_download_into_a_relative_directory(tmp_path: Path, spark: SparkInstallation, monkeypatch: pytest.MonkeyPatch):
    java = fake_ivy(tmp_path, COPY, make_jars(tmp_path / "complete", IVY_NAMES))
    monkeypatch.chdir(tmp_path)
    connector.fetch_connector(Path("jars"), spark, java, {})
    assert sorted(os.listdir(tmp_path / "jars")) == sorted(IVY_NAMES)


def test_ivy_settings_of_the_user_are_used(tmp_path: Path, spark: SparkInstallation):
    java = fake_ivy(
        tmp_path, f'echo "$settings" > {tmp_path}/settings; {COPY}', make_jars(tmp_path / "complete", IVY_NAMES)
    )
    connector.fetch_connector(tmp_path / "a", spark, java, {})
    assert Path((tmp_path / "settings").read_text().strip()) == connector.IVY_SETTINGS
    connector.fetch_connector(tmp_path / "b", spark, java, {}, tmp_path / "mine.xml")
    assert (tmp_path / "settings").read_text().strip() == f"{tmp_path}/mine.xml"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Server access error at url https://repo1 (java.net.UnknownHostException: repo1)'; exit 1",
         "unknown host repo1"),
        ("echo 'x (java.net.ConnectException: Connection refused)'; exit 1", "Connection refused"),
        ("echo ':: org.apache#connector;4.0.0: not found'; exit 1", "org.apache#connector;4.0.0: not found"),
        ("exit 1", "Ivy printed nothing"),
        ("echo nothing to do; echo '  at org.apache.ivy.Main.main(Main.java:233)'", "nothing to do"),
    ],
)  # fmt: skip
def test_a_failed_download_is_one_sentence_and_leaves_no_files(
    tmp_path: Path, spark: SparkInstallation, script: str, reason: str
):
    with pytest.raises(PipelineError) as caught:
        connector.fetch_connector(tmp_path / "cache" / "jars", spark, fake_ivy(tmp_path, script), {})
    assert str(caught.value) == (
        f"cannot download Spark's Kafka connector: {reason} (on a machine with network access, run kbroker pipeline "
        "fetch DIR; then copy DIR to this machine and use --spark-jars DIR)"
    )
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path, spark: SparkInstallation):
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"/file/jars: cannot be written: "):
        connector.fetch_connector(tmp_path / "file" / "jars", spark, fake_ivy(tmp_path, COPY), {})


def test_two_simultaneous_downloads(tmp_path: Path, spark: SparkInstallation):
    """Each waits in Ivy until the other one has started."""
    meet = f"touch {tmp_path}/here-$$; while [ $(ls {tmp_path} | grep -c here-) -lt 2 ]; do sleep 0.01; done; {COPY}"
    java = fake_ivy(tmp_path, meet, make_jars(tmp_path / "complete", IVY_NAMES))
    jars: list[list[str]] = []
    environ = {"XDG_CACHE_HOME": str(tmp_path / "caches")}
    fetchers = [
        threading.Thread(
            target=lambda: jars.append(connector.cached_jars(spark, java, environ, None, lambda _: None)), daemon=True
        )
        for _ in range(2)
    ]
    for fetcher in fetchers:
        fetcher.start()
    for fetcher in fetchers:
        fetcher.join(60)
    assert len(jars) == 2
    assert jars[0] == jars[1]
    assert all(zipfile.is_zipfile(jar) for jar in jars[0])


def test_a_proxy_of_the_environment_becomes_java_options():
    assert connector._proxy_options({"https_proxy": "http://user@proxy.example:3128"}) == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
    ]
    assert connector._proxy_options({}) == []
