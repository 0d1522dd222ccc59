"""The judges bite: every planted mistake is seen by some seed among a bounded number."""

from __future__ import annotations

import pytest

from amble.sim.campaign import Job
from tests.sim.planted import MISTAKES, Mistake

# After the seed that is known to show it, so many others are tried: the code around a mistake may move.
OTHERS = 40


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_is_seen(mistake: Mistake) -> None:
    with mistake.planted():
        for seed in (mistake.seed, *range(OTHERS)):
            seen = {violation.judge for violation in Job(seed, mistake.profile).play().violations}
            if seen & mistake.judges:
                return
    pytest.fail(f"no seed of {OTHERS} shows it")
