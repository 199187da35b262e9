"""The plot of an archive."""

from pathlib import Path

import pytest

from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.archive.plot import plot_archive
from kbroker.pipeline.errors import PipelineError
from tests.unit.support.archives import make_file, new_data_path


def test_only_rows_with_a_timestamp_are_plotted(tmp_path: Path) -> None:
    dated = make_file(new_data_path(), rows=90, partitions=2)
    undated = dated._replace(
        path=new_data_path(),
        partitions=tuple(stats._replace(from_ms=-1, to_ms=-1) for stats in dated.partitions),
    )
    path = tmp_path / "p.png"
    plot_archive(ArchiveState(files={file.path: file for file in (dated, undated)}), str(path), "title")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PipelineError, match="no row has a timestamp"):
        plot_archive(ArchiveState(files={undated.path: undated}), str(tmp_path / "q.png"), "title")
