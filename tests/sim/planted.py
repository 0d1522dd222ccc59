"""Small mistakes, planted one at a time in the production code: each breaks one promise, and the judges must see it.

A mistake is planted by rewriting the source of one function, or one SQL statement. A rewrite that finds nothing to
rewrite fails, so that the table follows the code.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from amble.adapters.sql import admission, crossing, gatekeeping, holding, leasing, near, ownership, recording
from amble.app import crawl, filegroup, twins
from amble.domain import attempt, politeness, robots
from amble.formats import registry
from amble.stages import admit, complete, gate, journey, store
from amble.upkeep import relay


def rewritten(function: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
    """The function with a piece of its source replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__}: {old!r} stands there {source.count(old)} times"
    room: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + source.replace(old, new), "<planted>", "exec")
    exec(code, function.__globals__, room)
    return room[function.__name__]  # type: ignore[no-any-return]


Plant = Callable[[], Iterator[Any]]


def in_source(owner: Any, name: str, old: str, new: str) -> Callable[[], Any]:
    return lambda: mock.patch.object(owner, name, rewritten(getattr(owner, name), old, new))


def in_sql(module: Any, name: str, old: str, new: str) -> Callable[[], Any]:
    def plant() -> Any:
        statement = getattr(module, name)
        assert old in statement, f"{name} has no {old!r}"
        return mock.patch.object(module, name, statement.replace(old, new))

    return plant


@dataclass(frozen=True)
class Mistake:
    """What is planted, and the judges that may be the first to see it. `seed` is known to show it."""

    name: str
    plants: tuple[Callable[[], Any], ...]
    judges: frozenset[str]
    profile: str = "default"
    seed: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for plant in self.plants:
                stack.enter_context(plant())
            yield


def mistake(
    name: str, judges: str, *plants: Callable[[], Any], profile: str = "default", seed: int = 0
) -> Mistake:
    return Mistake(name, plants, frozenset(judges.split(" | ")), profile, seed)


_GUESS = "refs = [type(lease.prior_body or _Ref)(9, 9, 9)]"


class _KeptLater:
    """What is taken waits in memory until the next parcel comes."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Any]] = {}

    def __call__(self, inbox: Any, parcel: Any) -> bool:
        waiting = self._waiting.setdefault(id(inbox), [])
        books = inbox._books
        for late in waiting:
            packed = crossing._encode(late.candidates)
            facts = (late.source, late.number, packed, len(late.candidates), late.policy_version, books.now)
            books.execute(crossing._RECEIVE, facts)
            books.tally.add("inbox", len(late.candidates))
        waiting[:] = [parcel]
        return False


class _SentLater:
    """What is found waits in memory until more is found."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Any]] = {}

    def __call__(self, outbox: Any, candidates: Any, policy_version: int) -> None:
        waiting = self._waiting.setdefault(id(outbox), [])
        for late in waiting:
            outbox.send(late, policy_version)
        waiting[:] = [candidates]


MISTAKES = (
    mistake(
        "a result is taken from a holder whose token has been replaced",
        "stale is harmless",
        in_source(holding.Holding, "held", "row[1] != key.token or row[2] != key.attempt or ", ""),
        seed=32,
    ),
    mistake(
        "a slot and its lease are let go of after three seconds, whatever the request may still do",
        "concurrency | spacing",
        in_source(
            gatekeeping.Gatekeeping, "_grant", "until + books.settings.lease_grace_ms", "books.now + 3_000"
        ),
    ),
    mistake(
        "the state says FETCHED while the bytes are still on their way",
        "bytes before state",
        in_source(
            store.Recorder,
            "store",
            "refs = await append_when_well(self.archive, records, self.health)",
            "import asyncio\n"
            "    asyncio.get_running_loop().create_task(append_when_well(self.archive, records, self.health))\n"
            "    refs = [BodyRef(99, number, 1) for number in range(len(records))]",
        ),
    ),
    mistake(
        "an archive that cannot write is taken for one that has written",
        "bytes before state",
        in_source(
            store.Recorder,
            "store",
            "refs = await append_when_well(self.archive, records, self.health)",
            "from amble.domain.errors import ArchiveUnavailable\n"
            "    try:\n        refs = await self.archive.append(records)\n"
            "    except ArchiveUnavailable:\n        refs = [BodyRef(99, n, 1) for n in range(len(records))]",
        ),
    ),
    mistake(
        "a new owner does not wait for what the old one may still have under way",
        "concurrency | spacing | single authority",
        in_source(crawl.Crawl, "_wait_out_earlier_owner", "fence_wait_s > 0", "fence_wait_s < 0"),
        seed=19,
    ),
    mistake(
        "the cursor moves in a commit of its own, before the links are admitted",
        "links are never lost",
        in_source(
            admit.UrlGate,
            "admit_links",
            "report = await self._frontier.admit(",
            "if cursor is not None:\n"
            "        await self._frontier.admit(AdmitBatch([], cursor))\n        cursor = None\n"
            "    report = await self._frontier.admit(",
        ),
        seed=36,
    ),
    mistake(
        "a new life forgets when the last requests began",
        "spacing | retry-after",
        in_source(
            ownership.Ownership,
            "take_over",
            "self._gatekeeping.requeue_leased(lapsed)",
            "self._gatekeeping.requeue_leased(lapsed)\n"
            "    books.execute('UPDATE origin SET next_start = 0, rest_until = 0, wake_at = min(wake_at, 0)')\n"
            "    books.ledger.forget()",
        ),
    ),
    mistake(
        "Retry-After is not read",
        "retry-after",
        in_source(store.Recorder, "_retry_after", 'reply.headers.get("retry-after")', "None"),
        seed=2,
    ),
    mistake(
        "a start does not ask whether the robots decision is still the one it was granted under",
        "no policy, no page",
        in_source(gatekeeping.Gatekeeping, "_refusal", "ask.robots_version >= 0 and", "False and"),
        profile="hostile",
        seed=19,
    ),
    mistake(
        "a document is published twice",
        "one publication",
        in_source(
            recording.Recording,
            "complete",
            "self._publish(key, held.generation, item.extraction_generation)",
            "self._publish(key, held.generation, item.extraction_generation)\n"
            "        self._publish(key, held.generation, item.extraction_generation + 1)",
        ),
    ),
    mistake(
        "the target of a redirect is dropped",
        "links are never lost",
        in_source(registry.Registry, "_read_redirect", "links=[Link(url, int(Edge.REDIRECT))]", "links=[]"),
        seed=20,
    ),
    mistake(
        "a lease does not begin a new attempt",
        "stale is harmless | no internal error",
        in_source(leasing.Leasing, "_grant", "attempt += 1", "attempt = max(attempt, 1)"),
    ),
    mistake(
        "giving a lease back costs a try",
        "tries are counted right",
        in_sql(gatekeeping, "_PUT_BACK", "rq = priority", "tries = tries + 1, rq = priority"),
        seed=0,
    ),
    mistake(
        "a lapsed lease keeps its slot",
        "tables agree | everything ends",
        in_source(
            gatekeeping.Gatekeeping,
            "requeue_leased",
            "slot_origin, None, 0, 0, 0, None)",
            "None, None, 0, 0, 0, None)",
        ),
    ),
    mistake(
        "a failed try is due again at once",
        "nothing waits without a reason",
        lambda: mock.patch.object(store, "after_failure", _at_once),
        seed=1,
    ),
    mistake(
        "leases are given to an owner that has been replaced",
        "single authority | stale is harmless",
        in_source(leasing.Leasing, "lease", "not books.is_current(ask.partition, ask.epoch)", "False"),
        seed=6,
    ),
    mistake(
        "the addresses of a name are not judged",
        "no forbidden destination",
        lambda: mock.patch.object(gate, "judge_all", lambda addresses, _: _Unjudged(tuple(addresses), ())),
        seed=5,
    ),
    mistake(
        "a pause is not looked at when a start is granted",
        "pause is prompt",
        in_source(gatekeeping.Gatekeeping, "_refusal", "origin.paused", "False"),
        profile="hostile",
    ),
    mistake(
        "what an earlier life had fetched is not handed to the next one",
        "nothing lost | everything ends",
        in_source(
            ownership.Ownership,
            "take_over",
            "[found for row in left if (found := self._resume(row)) is not None]",
            "[]",
        ),
    ),
    mistake(
        "manifests that are half consumed are not taken up again",
        "links are never lost | everything ends",
        in_source(
            ownership.Ownership,
            "take_over",
            "[self._open(row) for row in books.execute(_OPEN_MANIFESTS).fetchall()]",
            "[]",
        ),
        profile="hostile",
        seed=27,
    ),
    mistake(
        "a robots.txt that cannot be had opens its site",
        "no policy, no page",
        in_source(
            robots,
            "decide_failure",
            "return RobotsDecision(RobotsOutcome.UNREACHABLE, retry_ms)",
            "return RobotsDecision(RobotsOutcome.ALLOW_ALL, retry_ms)",
        ),
        lambda: mock.patch.object(store, "decide_failure", _open_door),
        seed=3,
    ),
    mistake(
        "Crawl-delay is not obeyed",
        "spacing",
        in_source(politeness, "effective_delay_ms", "min(crawl_delay_ms, policy.crawl_delay_cap_ms)", "0"),
        lambda: mock.patch.object(gate, "effective_delay_ms", _without_crawl_delay),
        lambda: mock.patch.object(store, "effective_delay_ms", _without_crawl_delay),
        seed=1,
    ),
    mistake(
        "a redirected robots.txt counts the next start from the reservation and not from the request",
        "spacing",
        in_source(gatekeeping.Gatekeeping, "reserve", "self._learn_start(ask, held)", "pass"),
        profile="hostile",
        seed=38,
    ),
    mistake(
        "the next start counts from the reservation even when the request began much later",
        "spacing",
        in_source(
            holding.Holding, "_learn", "max(started_at or 0, now - effect.duration_ms)", "started_at or 0"
        ),
        seed=3,
    ),
    mistake(
        "a new life counts the next start from a reservation whose request may have begun just before",
        "spacing",
        in_source(
            gatekeeping.Gatekeeping,
            "requeue_leased",
            "self._space_from_latest(rows)",
            "pass",
        ),
        profile="hostile",
        seed=19,
    ),
    mistake(
        "starts at an origin with several slots begin whenever the store's answer is heard",
        "spacing",
        in_source(gate.EgressGate, "_reserve", "lease.facts.active_max > 1", "False"),
        profile="hostile",
        seed=219,
    ),
    mistake(
        "bytes are taken for a copy of whatever was stored last",
        "dedup keeps provenance | one publication",
        in_source(
            recording.Recording,
            "find_body",
            "self._books.execute(_FIND_BODY, (digest,))",
            "self._books.execute('SELECT ref FROM body LIMIT 1')",
        ),
    ),
    mistake(
        "a page that says noindex is published",
        "one publication",
        in_source(complete, "withheld_because", "manifest.directives & NOINDEX", "False"),
        seed=2,
    ),
    mistake(
        "what is published does not enter the index of near-duplicates",
        "one of near-duplicates | tables agree",
        in_source(
            near.NearIndex,
            "enter",
            "self._database.executemany(_PUT, [_appended(key, last.get(key), entry) for key in keys])",
            "pass",
        ),
    ),
    mistake(
        "a document withheld as a near-duplicate enters the index all the same",
        "tables agree",
        in_source(
            recording.Recording,
            "_index",
            "twin = self._near.enter(url_id, fingerprint)",
            "twin = self._near.twin(fingerprint); self._near.file([(fingerprint, url_id)])",
        ),
        seed=8,
    ),
    mistake(
        "a text that has changed keeps its place in the index",
        "tables agree",
        in_source(recording.Recording, "_index", "self._near.leave(url_id, before)", "pass"),
        seed=9,
    ),
    mistake(
        "a document is looked for in its own file only",
        "one of near-duplicates",
        in_source(twins.Twins, "_after", "if url is not None:", "if False:"),
        profile="divided",
    ),
    mistake(
        "a resumed page keeps the token that its dead owner knew",
        "stale is harmless | nothing lost | everything ends",
        in_sql(ownership, "_RETOKEN", "token = ?2", "token = coalesce(token, ?2)"),
    ),
    mistake(
        "stopping forgets to give leases back",
        "an orderly end",
        in_source(
            journey.Dispatch,
            "run",
            "await asyncio.shield(self.recorder.put_back(lease, Reason.STOPPING, asked_ms=asked_ms))",
            "pass",
        ),
        seed=32,
    ),
    mistake(
        "parcels are dropped before they are delivered",
        "links are never lost | everything ends",
        in_source(
            relay.Relay,
            "_empty",
            "taken = await self._deliver(parcels, relayed)",
            "await self.source.drop_parcels(DropParcels(partition, epoch, [(p.destination, p.number) for p in parcels]));"
            " taken = await self._deliver(parcels, relayed)",
        ),
        profile="divided",
        seed=1,
    ),
    mistake(
        "a parcel is marked as taken in a commit before the one that keeps it",
        "links are never lost | everything ends | tables agree",
        in_source(
            crossing.Inbox,
            "_receive",
            "if amount:",
            "if _kept_later(self, parcel):",
        ),
        lambda: mock.patch.object(crossing, "_kept_later", _KeptLater(), create=True),
        profile="divided",
        seed=1,
    ),
    mistake(
        "links of other files leave in a commit of their own, after the cursor's",
        "links are never lost | everything ends | tables agree",
        in_source(
            admission.Admission,
            "_sort",
            "self._outbox.send(away, batch.policy_version)",
            "_sent_later(self._outbox, away, batch.policy_version)",
        ),
        lambda: mock.patch.object(admission, "_sent_later", _SentLater(), create=True),
        profile="divided",
        seed=1,
    ),
    mistake(
        "a robots.txt hop to another file asks only the file that it comes from",
        "spacing | concurrency | pause is prompt",
        in_source(filegroup.FileShards, "reserve", "home != ask.key.partition", "False"),
        profile="divided",
        seed=20,
    ),
)


class _Unjudged:
    def __init__(self, allowed: tuple[str, ...], refusals: tuple[str, ...]) -> None:
        self.allowed, self.refusals = allowed, refusals


def _at_once(*arguments: Any) -> Any:
    decision = attempt.after_failure(*arguments)
    return attempt.RetryAt(0) if isinstance(decision, attempt.RetryAt) else decision


def _open_door(*arguments: Any, **named: Any) -> Any:
    decision = robots.decide_failure(*arguments, **named)
    return robots.RobotsDecision(robots.RobotsOutcome.ALLOW_ALL, decision.ttl_ms)


def _without_crawl_delay(policy: Any, **named: Any) -> int:
    return politeness.effective_delay_ms(policy, **{**named, "crawl_delay_ms": 0})
