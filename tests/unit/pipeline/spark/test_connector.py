"""The connector's jars: which directories do, how they are fetched. Java is a script that plays Ivy."""

import os
import threading
import zipfile
from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import connector
from kbroker.pipeline.spark.installed import Spark
from kbroker.pipeline.spark.java import Java

IVY_NAMES = [f"{name}-{version}.jar" for _, name, version in connector.ARTIFACTS]


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "ivy-2.5.3.jar").touch()
    return Spark(tmp_path / "spark", "4.0.5", "2.13")


def filled(directory: Path, names: list[str]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        with zipfile.ZipFile(directory / name, "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", "")
    return directory


def ivy(tmp_path: Path, script: str, whole: Path | None = None) -> Java:
    """A java that looks for where Ivy puts jars ($target), and runs a shell script."""
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n"
        '  if [ "$1" = -retrieve ]; then target=$(dirname "$2"); fi\n'
        '  if [ "$1" = -settings ]; then settings=$2; fi\n  shift\ndone\n'
        f"whole={whole}\n{script}\n"
    )
    java.chmod(0o755)
    return Java(str(java), 17)


# Ivy itself fails with a page of frames where it is given a relative path.
COPY = 'case "$target" in /*) ;; *) exit 1;; esac; mkdir -p "$target" && cp "$whole"/*.jar "$target"'


def refused(directory: Path, spark: Spark) -> str:
    with pytest.raises(PipelineError) as caught:
        connector.connector_jars(directory, spark)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{directory}: ")


def test_jars_are_found_by_mavens_names_and_by_sparks(tmp_path: Path, spark: Spark):
    directory = filled(tmp_path / "maven", [*IVY_NAMES, "delta-4.0.jar"])
    assert connector.connector_jars(directory, spark) == sorted(str(path) for path in directory.iterdir())
    names = [f"{org}_{name}-{version}.jar" for org, name, version in connector.ARTIFACTS]
    directory = filled(tmp_path / "ivy", names)
    assert len(connector.connector_jars(directory, spark)) == 4


def test_a_relative_directory_gives_absolute_paths(tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch):
    filled(tmp_path / "jars", IVY_NAMES)
    monkeypatch.chdir(tmp_path)
    assert all(os.path.isabs(jar) for jar in connector.connector_jars(Path("jars"), spark))


@pytest.mark.parametrize("name", ["x[1]", "a*", "a?", "{a,b}", "a,b", "a\\b"])
def test_a_path_that_spark_takes_for_a_pattern_is_refused(tmp_path: Path, spark: Spark, name: str):
    told = f"Spark cannot load jars from a path with {next(c for c in name if not c.isalnum())} in it"
    assert told in refused(filled(tmp_path / name, IVY_NAMES), spark)
    java = ivy(tmp_path, "exit 1")
    with pytest.raises(PipelineError) as caught:
        connector.fetch(tmp_path / name, spark, java, {})
    assert told in str(caught.value)
    with pytest.raises(PipelineError) as caught:
        connector.kept_jars(spark, java, {"XDG_CACHE_HOME": str(tmp_path / name)}, None, print)
    assert told in str(caught.value)


def test_directories_that_do_not_do_are_told_apart(tmp_path: Path, spark: Spark):
    assert refused(tmp_path / "none", spark).startswith("there is no such directory")
    assert refused(filled(tmp_path / "other", ["delta.jar"]), spark).startswith("no spark-sql-kafka-0-10 is there")
    part = filled(tmp_path / "part", [name for name in IVY_NAMES if not name.startswith("kafka-clients")])
    assert refused(part, spark).startswith("kafka-clients is missing there")
    both = filled(tmp_path / "both", [*IVY_NAMES, "spark-sql-kafka-0-10_2.13-4.0.5.jar"])
    assert refused(both, spark).startswith("2 connectors are there")


@pytest.mark.parametrize(
    ("jar", "what"),
    [
        ("spark-sql-kafka-0-10_2.12-3.5.1.jar", "is for Spark 3.5 with Scala 2.12"),
        ("spark-sql-kafka-0-10_2.13-4.1.0.jar", "is for Spark 4.1 with Scala 2.13"),
        ("spark-sql-kafka-0-10_2.12-4.0.0.jar", "is for Spark 4.0 with Scala 2.12"),
    ],
)
def test_a_connector_of_another_spark_or_scala_is_refused(tmp_path: Path, spark: Spark, jar: str, what: str):
    directory = filled(tmp_path / "jars", [jar, *IVY_NAMES[1:]])
    assert refused(directory, spark) == f"{jar} {what}, and this is Spark 4.0.5 with Scala 2.13"


def test_a_damaged_jar_is_named(tmp_path: Path, spark: Spark):
    directory = filled(tmp_path / "jars", IVY_NAMES)
    jar = directory / IVY_NAMES[2]
    jar.write_bytes(jar.read_bytes()[:20])
    assert refused(directory, spark) == f"{jar} is damaged: remove it and fetch it again"


def test_the_cache_is_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = f"kbroker/spark-{connector.VERSION}"
    assert connector.cache_directory({}) == tmp_path / ".cache" / kept
    assert connector.cache_directory({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache" / kept
    assert connector.cache_directory({"XDG_CACHE_HOME": "/caches"}) == Path("/caches") / kept


def test_it_is_fetched_once_and_again_when_a_jar_is_damaged(tmp_path: Path, spark: Spark):
    java = ivy(tmp_path, COPY, filled(tmp_path / "whole", IVY_NAMES))
    environ, notes = {"XDG_CACHE_HOME": str(tmp_path / "caches")}, []
    first = connector.kept_jars(spark, java, environ, None, notes.append)
    assert [os.path.basename(jar) for jar in first] == sorted(IVY_NAMES)
    unused = Java("/nowhere/java", 17)
    assert connector.kept_jars(spark, unused, environ, None, notes.append) == first
    assert len(notes) == 1
    Path(first[0]).write_bytes(b"")
    assert connector.kept_jars(spark, java, environ, None, notes.append) == first
    assert Path(first[0]).stat().st_size > 0
    assert os.listdir(tmp_path / "caches" / "kbroker") == [f"spark-{connector.VERSION}"]


def test_a_relative_directory_is_filled(tmp_path: Path, spark: Spark, monkeypatch: pytest.MonkeyPatch):
    java = ivy(tmp_path, COPY, filled(tmp_path / "whole", IVY_NAMES))
    monkeypatch.chdir(tmp_path)
    connector.fetch(Path("jars"), spark, java, {})
    assert sorted(os.listdir(tmp_path / "jars")) == sorted(IVY_NAMES)


def test_settings_of_the_users_are_given_to_ivy(tmp_path: Path, spark: Spark):
    java = ivy(tmp_path, f'echo "$settings" > {tmp_path}/asked; {COPY}', filled(tmp_path / "whole", IVY_NAMES))
    connector.fetch(tmp_path / "a", spark, java, {})
    assert Path((tmp_path / "asked").read_text().strip()) == connector.IVY_SETTINGS
    connector.fetch(tmp_path / "b", spark, java, {}, tmp_path / "mine.xml")
    assert (tmp_path / "asked").read_text().strip() == f"{tmp_path}/mine.xml"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Server access error at url https://repo1 (java.net.UnknownHostException: repo1)'; exit 1",
         "the host repo1 is not known"),
        ("echo 'x (java.net.ConnectException: Connection refused)'; exit 1", "Connection refused"),
        ("echo ':: org.apache#connector;4.0.0: not found'; exit 1", "org.apache#connector;4.0.0: not found"),
        ("exit 1", "Ivy said nothing"),
        ("echo nothing to do; echo '  at org.apache.ivy.Main.main(Main.java:233)'", "nothing to do"),
    ],
)  # fmt: skip
def test_a_failed_fetch_is_one_sentence_and_leaves_nothing(tmp_path: Path, spark: Spark, script: str, reason: str):
    with pytest.raises(PipelineError) as caught:
        connector.fetch(tmp_path / "cache" / "jars", spark, ivy(tmp_path, script), {})
    assert str(caught.value) == (
        f"Spark's Kafka connector could not be fetched: {reason} (where there is a network: "
        "kbroker pipeline fetch DIR; then here: --spark-jars DIR)"
    )
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path, spark: Spark):
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"/file/jars: cannot be written: "):
        connector.fetch(tmp_path / "file" / "jars", spark, ivy(tmp_path, COPY), {})


def test_two_that_fetch_at_once_do_not_disturb_each_other(tmp_path: Path, spark: Spark):
    """Each waits in its Ivy until the other is there too."""
    meet = f"touch {tmp_path}/here-$$; while [ $(ls {tmp_path} | grep -c here-) -lt 2 ]; do sleep 0.01; done; {COPY}"
    java = ivy(tmp_path, meet, filled(tmp_path / "whole", IVY_NAMES))
    got: list[list[str]] = []
    environ = {"XDG_CACHE_HOME": str(tmp_path / "caches")}
    fetchers = [
        threading.Thread(
            target=lambda: got.append(connector.kept_jars(spark, java, environ, None, lambda _: None)), daemon=True
        )
        for _ in range(2)
    ]
    for fetcher in fetchers:
        fetcher.start()
    for fetcher in fetchers:
        fetcher.join(60)
    assert len(got) == 2
    assert got[0] == got[1]
    assert all(zipfile.is_zipfile(jar) for jar in got[0])


def test_a_proxy_of_the_environment_is_told_to_java():
    assert connector._proxy({"https_proxy": "http://user@proxy.example:3128"}) == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
    ]
    assert connector._proxy({}) == []
