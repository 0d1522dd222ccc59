"""The simulator itself: one seed is one story, on every Python and under every hash seed, and its judges find nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from amble.sim.campaign import Campaign, Job, play_all, shrink, story
from tests.sim.planted import MISTAKES
from tests.sim.seeds import REGRESSIONS

SEEDS = 200
_SAME = ((3, "calm"), (5, "default"), (11, "default"), (4, "hostile"), (1, "divided"))


@pytest.mark.timeout(600)
def test_no_judge_complains_about_any_of_many_seeds_and_everything_is_reached() -> None:
    campaign = Campaign("default")
    for verdict in play_all([Job(seed, "default") for seed in range(SEEDS)]):
        campaign.add(verdict)
    assert [(verdict.seed, str(verdict.violations[0])) for verdict in campaign.failed] == []
    assert campaign.missing() == []


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("profile", ["calm", "hostile", "divided"])
def test_no_judge_complains_in_the_other_profiles(seed: int, profile: str) -> None:
    assert Job(seed, profile).play().violations == ()


@pytest.mark.parametrize(("seed", "profile", "why"), REGRESSIONS)
def test_a_seed_that_once_broke_a_promise_keeps_it(seed: int, profile: str, why: str) -> None:
    assert Job(seed, profile).play().violations == (), why


def hashes() -> list[str]:
    return [Job(seed, profile).play().hash for seed, profile in _SAME]


def test_a_seed_is_the_same_story_twice() -> None:
    assert hashes() == hashes()


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_a_seed_is_the_same_story_in_another_process(hash_seed: str) -> None:
    code = "from tests.sim.test_simulator import hashes; print(*hashes())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stdout.split() == hashes()


def test_different_seeds_are_different_stories() -> None:
    assert len({Job(seed, "default").play().hash for seed in range(5)}) == 5


def test_a_failing_seed_is_told_as_a_short_story_with_its_complaint_last() -> None:
    mistake = next(item for item in MISTAKES if "forgets when" in item.name)
    with mistake.planted():
        smallest, verdict = shrink(Job(mistake.seed, mistake.profile))
        assert not verdict.passed
        assert smallest.off, "faults that have nothing to do with it are left out"
        told = story(verdict)
    assert " judge " in told[-1]
    assert len(told) <= 42
