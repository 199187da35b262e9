from collections.abc import Callable

from kbroker.coordinator.runtime.key_lock import KeyLock


class Story:
    def __init__(self) -> None:
        self.gate = KeyLock()
        self.done: list[str] = []

    def does(self, name: str, then: Callable[[], None] = lambda: None) -> Callable[[], None]:
        def operation() -> None:
            self.done.append(name)
            then()

        return operation


def test_commits_pass_each_other_by_but_not_a_write_of_the_group() -> None:
    story = Story()
    story.gate.enter(story.does("commit 1", story.gate.share))
    story.gate.enter(story.does("commit 2", story.gate.share))
    story.gate.enter(story.does("sync", story.gate.hold))
    story.gate.enter(story.does("commit 3", story.gate.share))
    assert story.done == ["commit 1", "commit 2", "sync"]
    story.gate.release()
    assert story.done == ["commit 1", "commit 2", "sync", "commit 3"]


def test_what_must_be_alone_waits_for_commits_and_keeps_its_turn() -> None:
    story = Story()
    story.gate.enter(story.does("commit 1", story.gate.share))
    story.gate.enter(story.does("delete", story.gate.hold), alone=True)
    story.gate.enter(story.does("commit 2", story.gate.share))
    assert story.done == ["commit 1"]
    story.gate.unshare()
    assert story.done == ["commit 1", "delete"]
    story.gate.release()
    assert story.done == ["commit 1", "delete", "commit 2"]
    assert not story.gate.is_idle
    story.gate.unshare()
    assert story.gate.is_idle


def test_each_that_waits_may_hold_the_gate_again() -> None:
    story = Story()
    story.gate.hold()
    for name in ("a", "b", "c"):
        story.gate.enter(story.does(name, story.gate.hold))
    for done in (["a"], ["a", "b"], ["a", "b", "c"]):
        story.gate.release()
        assert story.done == done
