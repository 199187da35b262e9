"""The extras of pyproject.toml install what the data pipeline needs."""

import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def installed_by(requirement: Requirement) -> set[str]:
    """Return the names of a distribution and of what its requested extras require."""
    environments = [{"extra": extra} for extra in requirement.extras]
    extra_requirements = [Requirement(text) for text in requires(requirement.name) or () if requirement.extras]
    return {requirement.name} | {
        row.name
        for row in extra_requirements
        if row.marker is not None and any(row.marker.evaluate(environment) for environment in environments)
    }


def test_the_extra_spark_installs_pandas_for_map_in_arrow() -> None:
    """PySpark does not require pandas, but mapInArrow, which `kbroker replay` uses, fails without it."""
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    names = set().union(*(installed_by(Requirement(text)) for text in extras["spark"]))
    assert {"matplotlib", "pandas", "pyarrow", "pyspark"} <= names
