"""Archived topics as the JSON that `kbroker archive` prints."""

import json

from kbroker.cli.archive.json_output import topic_json
from kbroker.pipeline.archive.manifest.model import ArchiveState, CoveredRange, Gap, ManifestCommit, apply_commit
from kbroker.pipeline.archive.report import report_topics


def test_topics_as_json() -> None:
    commit = ManifestCommit(
        "append",
        1,
        covered=(CoveredRange("orders", 0, 100, 200), CoveredRange("orders", 0, 300, 310)),
        gaps=(Gap("orders", 0, 0, 100, "retention"), Gap("audit", 0, 0, 7, "retention")),
    )
    audit, orders = report_topics(apply_commit(ArchiveState(), 0, commit))
    documents = json.loads(json.dumps([topic_json(audit), topic_json(orders)]))
    assert [document["topic"] for document in documents] == ["audit", "orders"]
    assert documents[0]["configs"] is None
    assert documents[1]["partitions"][0]["covered"] == [[100, 200], [300, 310]]
    assert documents[1]["offsets_without_record"] == 110
    unexplained = {"topic": "orders", "partition": 0, "start": 200, "end": 300, "reason": "unexplained"}
    assert documents[1]["gaps"][1] == unexplained
    assert topic_json(orders, partitions=False)["partitions"] == 1
