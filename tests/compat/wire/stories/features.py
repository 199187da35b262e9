"""Features that are finalized for the whole cluster: the version of transactions."""

from tests.compat.support import eventually
from tests.compat.wire.play import Play

NAME = "transaction.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3  # upgrade types; version 0 has only whether a downgrade is allowed
Update = tuple[str, int, int]  # feature, level, upgrade type


def update_features(play: Play) -> None:
    try:
        changes(play)
    finally:
        row = {"feature": NAME, "max_version_level": 2, "upgrade_type": UPGRADE}
        play.do("UpdateFeatures", feature_updates=[row], timeout=10_000)


def changes(play: Play) -> None:
    def ask(step: str, *updates: Update, level: int = 2, **more: object) -> None:
        """Asks; `level` is what clients are told afterwards, in Kafka a little later."""
        rows = [
            {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != UPGRADE}
            for name, level, kind in updates
        ]
        play.ask(step, feature_updates=rows, timeout=10_000, **more)
        eventually(lambda: finalized(play) == level, f"level {level} after {step!r} in version {play.version}")

    ask("nothing")
    ask("the level that it has", (NAME, 2, UPGRADE))
    ask("the level that it has, as a downgrade", (NAME, 2, SAFE))
    ask("a level that does not exist", (NAME, 3, UPGRADE))
    ask("a negative level", (NAME, -1, UPGRADE))
    ask("an unknown feature", ("wire.unknown", 1, UPGRADE))
    ask("no level of an unknown feature", ("wire.unknown", 0, SAFE))
    ask("an empty name", ("", 1, UPGRADE))
    ask("down as an upgrade", (NAME, 1, UPGRADE))
    ask("down", (NAME, 1, SAFE), level=2 if play.version == 0 else 1)
    ask("up", (NAME, 2, UPGRADE))
    ask("down, and an unknown one", (NAME, 1, SAFE), ("wire.unknown", 1, UPGRADE))
    if play.version >= 1:
        ask("no such upgrade type", (NAME, 1, 4))
        ask("upgrade type 0", (NAME, 1, 0))
        ask("down to 0", (NAME, 0, UNSAFE), level=0)
        ask("up as a downgrade", (NAME, 1, SAFE), level=0)
        ask("up to 1", (NAME, 1, UPGRADE), level=1)
        ask("twice", (NAME, 2, UPGRADE), (NAME, 1, SAFE), level=1)
        ask("up again", (NAME, 2, UPGRADE))
    if play.version >= 2:
        ask("only validated", (NAME, 1, SAFE), validate_only=True)
        ask("only validated, and refused", (NAME, 3, UPGRADE), validate_only=True)


def finalized(play: Play) -> int:
    """The level that clients are told of; one of 0 is left out."""
    answer = play.do("ApiVersions", client_software_name="wire", client_software_version="1")
    found = [row["max_version_level"] for row in answer["finalized_features"] if row["name"] == NAME]
    return int(found[0]) if found else 0
