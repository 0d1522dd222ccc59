"""What an estimate of capacity assumes: every input with its default, unit, meaning and bounds. Values only.

Apart from capacity.py because the command line shows them in its help, and a command that is not `plan` should not pay
for what computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

# Measured rates, all on virtual cores at 2 GHz; docs/capacity.md tells where each comes from and how to measure yours.
# `make bench` (docs/performance.md): all processes, 89 KB pages with 100 links over plain HTTP, start and end included.
PAGES_PER_CPU_S: Final = 147.0
# PostgreSQL, one page cycle (lease, fetched, parsed, complete, 30 candidates of which 3 are new): CPU of the server,
# and log written.
DATABASE_CPU_S: Final = 483e-6
DATABASE_LOG_BYTES: Final = 10_800.0
# A row of `url`, and its entries in the primary key and the queue index, in PostgreSQL.
URL_BYTES: Final = 200.0
INDEX_BYTES: Final = 52.0
# A server with 128 GB of memory and 2 TB of NVMe keeps that many rows with the hot part of their index in memory.
URLS_PER_DATABASE: Final = 3.75e9
# Page cycles per second of one SQLite file that holds 100 million URLs, every commit synced.
SQLITE_CYCLES_PER_S: Final = 420.0
# HTML in gzip members of one record each, fast level.
COMPRESSION: Final = 4.1


class Input(NamedTuple):
    """One assumption. `default` None: it must be given. Accepted is more than 0, or 0 where `zero` says so."""

    name: str
    default: float | None
    unit: str
    why: str
    most: float = inf
    zero: bool = False

    def accepts(self, value: float) -> bool:
        """Whether `value` makes sense. Not a number never does."""
        return 0.0 < value <= self.most or (value == 0.0 and self.zero)

    @property
    def wish(self) -> str:
        """What is accepted, for people."""
        low = "0 or more" if self.zero else "more than 0"
        return f"a number, {low}" if self.most == inf else f"a number, {low} and at most {self.most:g}"


_ROWS = (
    Input("pages", None, "pages", "Pages to fetch."),
    Input("days", None, "days", "Time to fetch them in."),
    Input("peak", 1.0, "times", "Peak rate over mean rate."),
    Input("page_bytes", 100_000.0, "B", "Mean size of a page as it is received."),
    Input("service_s", 1.0, "s", "Mean time of a fetch that is answered."),
    Input("timeout_share", 0.05, "share", "Starts that end in a timeout.", most=0.99, zero=True),
    Input("timeout_s", 10.0, "s", "How long such a start occupies its slot."),
    Input("error_share", 0.0, "share", "Starts that are answered with no page.", most=0.99, zero=True),
    Input("origins", 0.0, "origins", "Origins that are eligible all the time; 0: not known.", zero=True),
    Input("spacing_s", 2.0, "s", "Least time between two starts at one origin.", zero=True),
    Input(
        "adaptive_factor", 5.0, "times", "Delay after a fetch, in lengths of that fetch; 0: none.", zero=True
    ),
    Input("adaptive_cap_s", 30.0, "s", "The longest such delay."),
    Input("active_max", 1.0, "requests", "Requests at one origin at once."),
    Input(
        "concurrency", 0.0, "requests", "Requests at once over all origins; 0: as many as needed.", zero=True
    ),
    Input("links_per_page", 10.0, "URLs", "Candidate links of a page.", zero=True),
    Input("known_per_page", 2.0, "URLs", "URLs in the frontier for each page fetched."),
    Input("url_bytes", URL_BYTES, "B", "One record of the frontier."),
    Input("index_bytes", INDEX_BYTES, "B", "Index entries of one record.", zero=True),
    Input("frontier_replicas", 2.0, "copies", "Copies of the frontier: primary and standby."),
    Input("filter_error", 0.01, "share", "False positives of a Bloom filter over all URLs.", most=0.5),
    Input(
        "near_bytes",
        1_800.0,
        "B",
        "One document in a fleet's index of near-duplicates, on all its servers; 0: no such index.",
        zero=True,
    ),
    Input("facts_bytes", 500.0, "B", "Stored beside each body: fetch record, metadata.", zero=True),
    Input("compression", COMPRESSION, "times", "Stored bytes shrink by this."),
    Input("replicas", 3.0, "copies", "Copies of the archive."),
    Input("keep_days", 0.0, "days", "How long the crawl goes on and all is kept; 0: as --days.", zero=True),
    Input("body_reads", 1.0, "times", "How often each stored body is read again.", zero=True),
    Input(
        "duplicate_share", 0.0, "share", "Bytes that are already known and not parsed.", most=1.0, zero=True
    ),
    Input("pages_per_cpu_s", PAGES_PER_CPU_S, "pages/s", "Pages per second of one core, measured."),
    Input("utilisation", 0.6, "share", "How busy a core may be.", most=1.0),
    Input("cores", 16.0, "cores", "Cores of a machine."),
    Input("database_cpu_s", DATABASE_CPU_S, "s", "Database CPU of one page, measured."),
    Input("database_log_bytes", DATABASE_LOG_BYTES, "B", "Database log of one page, measured."),
    Input("urls_per_database", URLS_PER_DATABASE, "URLs", "Rows that one database server carries."),
    Input("sqlite_cycles_per_s", SQLITE_CYCLES_PER_S, "pages/s", "Pages per second of an SQLite file."),
)
INPUTS: Final[Mapping[str, Input]] = MappingProxyType({item.name: item for item in _ROWS})
