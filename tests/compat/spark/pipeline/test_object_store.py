"""An archive in an object store: archived by executors of Spark, and replayed."""

from typing import Any

import pytest

from kbroker.archive.catalogs import open_archive
from kbroker.archive.storage import open_storage
from kbroker.pipeline.cluster_admin import cluster_client
from kbroker.pipeline.replay.plan import ReplayRequest
from kbroker.pipeline.replay.preparation import ReplayContext, prepare_replay
from kbroker.pipeline.replay.routing import target_names
from kbroker.pipeline.replay.run import create_plan, execute_plan
from kbroker.pipeline.replay.selection import Selection
from kbroker.pipeline.replay.sending import SpeedLimit
from tests.compat.archive.s3_server import BUCKET, CREDENTIALS, SECRET, s3_server
from tests.compat.spark.helpers import Topics
from tests.compat.spark.pipeline.archiver import Archiver

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive catalogues")]


def test_archived_and_replayed(spark: Any, bootstrap: str, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record once, over two runs; the credentials are in no property of Spark."""
    source, target = topics.create(partitions=2), topics.create(partitions=2)
    location = f"s3://{BUCKET}/{source}"
    with s3_server() as url:
        # Spark's Python workers, which may be of another test, have no variables of this one.
        for name, text in {**CREDENTIALS, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("PYICEBERG_CATALOG__KBROKER__S3__ACCESS-KEY-ID", "me")
        monkeypatch.setenv("PYICEBERG_CATALOG__KBROKER__S3__SECRET-ACCESS-KEY", SECRET)
        archiver = Archiver(spark, bootstrap, location)
        for numbers in (range(100), range(100, 150)):
            topics.fill(source, [{"value": b"%d" % number, "partition": number % 2} for number in numbers])
            archiver.once(source)
        archive = open_archive(location)
        rows = archive.table(source).iceberg.scan().to_arrow()
        assert sorted(map(int, rows["value"].to_pylist())) == list(range(150))
        storage = open_storage(location)
        context = ReplayContext(spark, archive, storage, cluster_client(bootstrap), bootstrap, print, patience_s=20)
        request = ReplayRequest(Selection((source,)), target_names([source], target, None), append=True)
        execute_plan(context, create_plan(context, prepare_replay(context, request, {})), SpeedLimit())
        assert sorted(int(record.value()) for record in topics.read(target)) == list(range(150))
        properties = str(spark.sparkContext.getConf().getAll()) + spark.sql("SET -v").toPandas().to_string()
        assert SECRET not in properties
