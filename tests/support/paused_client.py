"""A process with many requests about to begin, all of which must have begun within a window. To be stopped and woken.

    python -m tests.support.paused_client PORT WINDOW_S COUNT

Says "ready" when it begins, and at its end how its requests ended, as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from amble.adapters.net.tls import lenient_provider
from amble.adapters.net.transport import Http1Transport
from amble.domain.policy import FetchLimits
from amble.ports import Ask, FetchFailure
from tests.support.raw_server import permit

# The requests are spread over so many windows: most of them would begin after it.
SPREAD = 3.0


async def main(port: int, window_s: float, count: int) -> None:
    """Ask for `count` pages, one after the other or nearly so, each only if the window is still open."""
    with tempfile.TemporaryDirectory() as spool:
        transport = Http1Transport(
            FetchLimits(connections_max=4), "amble-test/1.0", Path(spool), providers=(lenient_provider(),)
        )
        until_s = time.monotonic() + window_s
        print("ready", flush=True)

        async def one(number: int) -> str:
            await asyncio.sleep(SPREAD * window_s * number / count)
            allowed = permit(port, f"/{number}", begin_within_s=until_s - time.monotonic())
            outcome = await transport.fetch(allowed, Ask())
            return outcome.category.value if isinstance(outcome, FetchFailure) else "fetched"

        outcomes = Counter(await asyncio.gather(*(one(number) for number in range(count))))
        await transport.close()
    print(json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
