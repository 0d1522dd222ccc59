"""What the process asks of the system before it crawls."""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import pytest

from amble.adapters.system import FILES_RESERVED, SuspendedClock

_ASK = """
import resource, sys
from amble.adapters.system import room_for
soft, hard, *asked = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(*room_for(*asked), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "connections", "concurrency"),
    [
        (256, 8_000, (4_000, 256), 4_000, 256),
        (1_024, 1_024, (4_000, 256), 576, 256),
        (256, 256, (4_000, 256), 64, 32),
        (64, 64, (4_000, 256), 16, 8),
        (256, 1_024, (10, 5), 10, 5),
    ],
)
def test_open_files_bound_connections_and_requests(
    soft: int, hard: int, asked: tuple[int, int], connections: int, concurrency: int
) -> None:
    """Many systems start a process with 1,024 open files and let it have more when it asks."""
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if ours != resource.RLIM_INFINITY and ours < hard:
        pytest.skip("this machine allows fewer open files")
    done = subprocess.run(
        [sys.executable, "-c", _ASK, *map(str, (soft, hard, *asked))],
        capture_output=True,
        text=True,
        check=True,
    )
    *found, allowed = map(int, done.stdout.split())
    assert found == [connections, concurrency]
    # The worst case fits: every connection open, and a large body spooled for each request.
    assert connections + concurrency + FILES_RESERVED <= allowed or hard < FILES_RESERVED


def test_a_clock_that_counts_suspensions_is_never_behind_and_never_goes_back() -> None:
    clock = SuspendedClock()
    before_s = time.monotonic()
    first_s, second_s = clock.monotonic_s(), clock.monotonic_s()
    assert before_s <= first_s <= second_s
