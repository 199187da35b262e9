"""Recorded responses of Apache Kafka, in a JSON file with one line per field of a response:

{"versions": {"Heartbeat": "0-4", ...},
 "answers": {"Heartbeat": {"a member": {"error_code": {"0-4": "NONE"}, ...}, ...}, ...}}
"""

import json
from pathlib import Path
from typing import Any

RESPONSES_FILE = Path(__file__).with_name("kafka-4.4.0-responses.json")
FRAMES_FILE = Path(__file__).with_name("kafka-4.4.0-frames.json")

Steps = dict[str, dict[str, Any]]  # value by path by step, in one version


class RecordedResponses:
    """Responses by API and version."""

    def __init__(self) -> None:
        self.versions: dict[str, tuple[int, int]] = {}
        self._responses: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}

    def add(self, api: str, version: int, steps: Steps) -> None:
        first, last = self.versions.get(api, (version, version))
        self.versions[api] = (min(first, version), max(last, version))
        recorded = self._responses.setdefault(api, {})
        for step, response in steps.items():
            for path, value in response.items():
                recorded.setdefault(step, {}).setdefault(path, {})[str(version)] = value

    def remove(self, api: str) -> None:
        self.versions.pop(api, None)
        self._responses.pop(api, None)

    def steps(self, api: str, version: int) -> Steps:
        """Return the responses of one version."""
        steps: Steps = {}
        for step, paths in self._responses.get(api, {}).items():
            for path, by_version in paths.items():
                if str(version) in by_version:
                    steps.setdefault(step, {})[path] = by_version[str(version)]
        return steps

    def save(self, file: Path) -> None:
        lines = ['{"versions": {']
        versions = [f'  "{api}": "{first}-{last}"' for api, (first, last) in sorted(self.versions.items())]
        lines.append(",\n".join(versions))
        lines.append('},\n"answers": {')
        apis = []
        for api, steps in sorted(self._responses.items()):
            texts = [f"  {json.dumps(step)}: {{\n{self._paths_text(paths)}\n  }}" for step, paths in steps.items()]
            apis.append(f" {json.dumps(api)}: {{\n" + ",\n".join(texts) + "\n }")
        lines.append(",\n".join(apis))
        lines.append("}}")
        file.write_text("\n".join(lines) + "\n")

    def _paths_text(self, paths: dict[str, dict[str, Any]]) -> str:
        rows = ((path, json.dumps(_by_range(values), ensure_ascii=False)) for path, values in paths.items())
        return ",\n".join(f"    {json.dumps(path)}: {text}" for path, text in sorted(rows))

    @classmethod
    def load(cls, file: Path) -> "RecordedResponses":
        recorded = cls()
        content = json.loads(file.read_text())
        for api, versions in content["versions"].items():
            recorded.versions[api] = _bounds(versions)
        for api, steps in content["answers"].items():
            recorded._responses[api] = {
                step: {path: _by_version(ranges) for path, ranges in paths.items()} for step, paths in steps.items()
            }
        return recorded


def _by_range(by_version: dict[str, Any]) -> dict[str, Any]:
    """Return {"0-1": a, "2": b} for {"0": a, "1": a, "2": b}."""
    ranges: list[tuple[int, int, Any]] = []
    for version in sorted(map(int, by_version)):
        value = by_version[str(version)]
        if ranges and ranges[-1][1] == version - 1 and ranges[-1][2] == value:
            ranges[-1] = (ranges[-1][0], version, value)
        else:
            ranges.append((version, version, value))
    return {f"{first}-{last}" if first < last else str(first): value for first, last, value in ranges}


def _by_version(ranges: dict[str, Any]) -> dict[str, Any]:
    return {
        str(version): value
        for text, value in ranges.items()
        for version in range(_bounds(text)[0], _bounds(text)[1] + 1)
    }


def _bounds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
