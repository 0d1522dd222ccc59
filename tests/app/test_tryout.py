"""Members of `amble fleet`: a stop reaches each process once, also one that begins at that moment."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from amble.app.config import CrawlConfig
from amble.app.folder import Plan
from amble.app.tryout import FleetSize, TryOut


class Fleet(TryOut):
    """A fleet whose members only wait. `before` and `after` are called around each start."""

    __slots__ = ("after", "before", "begun")
    before: Callable[[], None]
    after: Callable[[], None]
    begun: list[subprocess.Popen[bytes]]

    def _process(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        self.before()
        process = subprocess.Popen(["sleep", "60"])
        self.begun.append(process)
        self.after()
        return process


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    plan = Plan(folder=tmp_path, resumes=False, config=CrawlConfig(), values={}, new_values={}, new_seeds=())
    made = Fleet(plan, FleetSize(agents=2, parsers=0), lambda *_: None, lambda _: None)
    made.before = made.after = lambda: None
    made.begun = []
    yield made
    for process in made.begun:
        process.kill()
        process.wait()


def test_a_member_that_is_started_again_while_somebody_says_stop_is_stopped_too(fleet: Fleet) -> None:
    fleet._start(fleet.plan)
    member, other = fleet._agents
    member.process.kill()
    member.process.wait()
    fleet._mend(member)
    assert member.again_s is not None
    member.again_s = 0.0
    # The signal finds the old process, which is gone, in the member's place.
    fleet.after = fleet.stop
    fleet._mend(member)
    assert member.process.wait(5) == other.process.wait(5) == -signal.SIGTERM


@pytest.mark.parametrize("moment", ["before", "after"])
def test_one_stop_while_the_members_begin_is_one_stop(fleet: Fleet, moment: str) -> None:
    def stop_once() -> None:
        if len(fleet.begun) == 1 and not fleet.stopped:
            fleet.stop()

    setattr(fleet, moment, stop_once)
    fleet._start(fleet.plan)
    assert not fleet.forced
    assert [member.process.wait(5) for member in fleet._agents] == [-signal.SIGTERM] * 2
    assert [member.asked for member in fleet._agents] == [1, 1]
