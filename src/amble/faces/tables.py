"""How answers about a crawl look to people: status, lists of URLs, why, dry runs, settings, findings. Pure text.

Every function yields lines; nothing here prints. Text that came from the web is made harmless on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from amble.app.config import Effective
from amble.app.dryrun import DryRun, Step
from amble.app.findings import Finding, Verdict
from amble.app.settings import SECTIONS, shown
from amble.domain.attempt import Edge, UrlKind
from amble.domain.decision import Withheld
from amble.domain.lifecycle import UrlState
from amble.domain.report import FetchLine, OriginLine, Status, UrlExplanation, UrlLine
from amble.domain.robots import RobotsOutcome
from amble.faces import text
from amble.faces.reasons import explanation_of

_LABEL_COLUMNS = 14
REASONS_SHOWN = 5


def row(label: str, value: str) -> str:
    """One labelled line."""
    return f"{label:<{_LABEL_COLUMNS}}{value}".rstrip()


def counts(of: Mapping[str, int], most: int = REASONS_SHOWN, words: Callable[[str], str] = text.words) -> str:
    """`12 out of scope, 3 too deep, 4 more`: the most frequent first."""
    ordered = sorted(of.items(), key=lambda item: (-item[1], item[0]))
    shown_ = [f"{text.count(number)} {words(word)}" for word, number in ordered[:most] if number]
    rest = sum(number for _, number in ordered[most:])
    return ", ".join([*shown_, *([f"{text.count(rest)} more"] if rest else [])])


def _with_counts(total: int, of: Mapping[str, int]) -> str:
    if list(of.values()) == [total]:
        return counts(of)
    return text.count(total) + (f": {counts(of)}" if total and of else "")


# --- status ------------------------------------------------------------------------------------------------------


def status_lines(
    status: Status, folder: Path, pid: int | None, trouble: str | None = None, database: str = ""
) -> Iterator[str]:
    """A crawl at a glance. `database`: where its frontier lives, "" for one in its folder."""
    if database:
        owners = f"owned by {text.safe(status.owner)}" if status.owner else "no agent owns any of it"
        yield row("database", f"{text.safe(database)} ({owners})")
    else:
        running = (
            "no process works in it"
            if pid is None
            else f"process {pid} works in it"
            if pid
            else "being crawled"
        )
        yield row("folder", f"{text.safe(str(folder))} ({running})")
    if trouble:
        yield row("trouble", text.safe(trouble))
    yield row("pages", f"{text.count(status.pages)}, {text.size(status.body_bytes)} of bodies")
    yield row("documents", _with_counts(status.documents, {}) + _withheld(status))
    yield row(
        "URLs", _with_counts(status.urls, {name: number for name, number in status.states.items() if number})
    )
    yield row("queued", _queued(status))
    yield row("in flight", text.count(status.in_flight))
    yield row("failed", _with_counts(status.failed, status.failures))
    yield row("excluded", _with_counts(status.excluded, status.exclusions))
    yield row("answers", counts(status.status_classes) or "none yet")
    yield row("links", f"{text.count(status.links)} seen{_left_out(status)}")
    yield row("origins", _origins(status))
    yield row("on the wire", f"{text.size(status.bytes)} received")


def _withheld(status: Status) -> str:
    """What is complete and no document. Near-duplicates always have their place: a setting decides about them."""
    others = dict(status.withheld)
    near = others.pop(Withheld.NEAR_DUPLICATE, 0)
    told = [f"{text.plural(near, 'near-duplicate')} by publish.near_duplicates"] if near else []
    told += [counts(others)] if others else []
    return f" (kept back: {', '.join(told)})" if told else ""


def _queued(status: Status) -> str:
    if not status.queued or status.next_wake_ms is None:
        return text.count(status.queued)
    wait_s = (status.next_wake_ms - status.now_ms) / 1_000
    return f"{text.count(status.queued)}, " + (
        "due now" if wait_s < 1 else f"next in {text.duration(wait_s)}"
    )


def _left_out(status: Status) -> str:
    return f"; left out: {counts(status.refused)}" if status.refused else ""


def _origins(status: Status) -> str:
    waiting = (
        f"; waiting: {counts(status.origins_waiting, words=text.waits)}" if status.origins_waiting else ""
    )
    return f"{text.count(status.origins)}, {text.count(status.origins_ready)} ready{waiting}"


# --- lists -------------------------------------------------------------------------------------------------------


def url_head() -> str:
    """The head of a list of URLs."""
    return f"{'state':<9} {'http':>4} {'depth':>5}  URL"


def url_line(line: UrlLine) -> str:
    """One URL in a list; its reason follows in brackets where it has one."""
    state = UrlState(line.state).name.lower()
    status = str(line.status) if line.status else "-"
    why = f"  [{text.safe(line.reason)}]" if line.reason else ""
    return f"{state:<9} {status:>4} {line.depth:>5}  {text.safe(line.url)}{why}"


def failed_head() -> str:
    """The head of a list of failures."""
    return f"{'category':<20} {'tries':>5}  URL"


def failed_line(line: UrlLine) -> str:
    """One URL that failed for good; the detail follows in brackets."""
    detail = f"  [{text.safe(text.shortened(line.detail, 100))}]" if line.detail else ""
    # Tries are counted until an answer is there, strikes from then on.
    tries = max(line.tries, line.strikes, min(line.attempt, 1))
    return f"{line.reason or '-':<20} {tries:>5}  {text.safe(line.url)}{detail}"


# --- why ---------------------------------------------------------------------------------------------------------


def why_lines(known: UrlExplanation) -> Iterator[str]:
    """Everything that is known of a URL, the answer first."""
    yield text.safe(known.url)
    if known.line is None and known.waits_for:
        yield row("state", "not known now")
        yield row("because", _reason(known.waits_for, ""))
    elif known.line is None:
        yield row("state", "not in the frontier")
    else:
        assert known.line is not None
        yield from _where(known, known.line)
    yield from _decisions(known)
    yield from _attempts(known.fetches)
    yield from _parses(known)
    if known.origin is not None:
        yield from _origin_lines(known.origin, known.now_ms)
        yield row("robots.txt", _robots(known.origin, known.robots))


def _where(known: UrlExplanation, line: UrlLine) -> Iterator[str]:
    kind = UrlKind(line.kind).name.lower()
    visit = f"{kind}, visit {line.crawl_generation}, {text.plural(line.attempt, 'attempt')}"
    yield row("state", f"{UrlState(line.state).name.lower()} ({visit})")
    if line.reason:
        yield row("because", _reason(line.reason, line.detail))
    if known.waits_for:
        yield row("waits", _waits(known))
    found_on = text.safe(known.found_on) or "the command line"
    depth = f"depth {line.depth}" + (f", {text.plural(line.hops, 'redirect')} in a row" if line.hops else "")
    yield row(
        "found", f"{text.moment(line.admitted_ms)} on {found_on} ({Edge(line.edge).name.lower()}, {depth})"
    )
    if line.canonical and line.canonical != line.url:
        yield row("canonical", text.safe(line.canonical))


def _reason(word: str, detail: str) -> str:
    explained = explanation_of(word)
    parts = [word]
    if detail:
        parts.append(f"({text.safe(text.shortened(detail, 200))})")
    if explained is not None:
        parts.append(f"- {explained.meaning}")
        if explained.remedy:
            parts.append(f"See: {explained.remedy}.")
    return " ".join(parts)


_STEPS = {
    "turn": "for its turn among the URLs of its origin",
    "fetch": "for its answer: the request is under way",
    "parse": "for a parser",
    "complete": "for its links to be admitted",
}


def _waits(known: UrlExplanation) -> str:
    explained = explanation_of(known.waits_for)
    what = _STEPS.get(known.waits_for) or (explained.meaning if explained else text.words(known.waits_for))
    if known.waits_until_ms is None:
        return what
    left_s = (known.waits_until_ms - known.now_ms) / 1_000
    return f"{what} Until {text.moment(known.waits_until_ms)} (in {text.duration(left_s)})"


def _decisions(known: UrlExplanation) -> Iterator[str]:
    for number, item in enumerate(known.decisions):
        label = "decisions" if number == 0 else ""
        detail = f" ({text.safe(text.shortened(item.detail, 120))})" if item.detail else ""
        yield row(
            label, f"{text.moment(item.at_ms)}  {item.reason}{detail}, policy version {item.policy_version}"
        )


def _attempts(fetches: Iterable[FetchLine]) -> Iterator[str]:
    for number, item in enumerate(fetches):
        yield row(
            "attempts" if number == 0 else "", f"{text.moment(item.at_ms)}  #{item.attempt} {_outcome(item)}"
        )


def _outcome(item: FetchLine) -> str:
    took = f"in {item.duration_ms} ms"
    failed = item.category + (f" ({text.safe(text.shortened(item.detail, 120))})" if item.detail else "")
    answer = item.answer
    if answer is None:
        return f"{failed or 'no answer'} {took}"
    kind = text.safe(answer.content_type.partition(";")[0]) or "no type"
    facts = [f"{answer.status}", kind, text.size(answer.body_bytes), took, f"from {answer.address}"]
    if answer.not_modified:
        facts.append("not modified")
    if answer.truncated:
        facts.append(f"cut off: {answer.truncated}")
    if answer.location:
        facts.append(f"to {text.safe(answer.location)}")
    if failed:
        facts.append(failed)
    return ", ".join(facts)


def _parses(known: UrlExplanation) -> Iterator[str]:
    for number, item in enumerate(known.manifests):
        links = f"{text.plural(item.links, 'link')}, {text.count(item.cursor)} of them looked at"
        title = f', "{text.safe(text.shortened(item.title, 80))}"' if item.title else ""
        label = "parses" if number == 0 else ""
        yield row(label, f"{text.moment(item.at_ms)}  #{item.attempt} {item.content_kind}, {links}{title}")


_ROBOTS = {
    RobotsOutcome.MISSING: "not fetched yet",
    RobotsOutcome.RULES: "rules at hand",
    RobotsOutcome.ALLOW_ALL: "the origin has none: everything is allowed",
    RobotsOutcome.UNREACHABLE: "unreachable: nothing is allowed",
    RobotsOutcome.STALE_RULES: "unreachable: the last good copy serves",
}

_UNREACHABLE = (RobotsOutcome.UNREACHABLE, RobotsOutcome.STALE_RULES)


def _origin_lines(origin: OriginLine, now_ms: int) -> Iterator[str]:
    facts = [
        f"{text.plural(origin.pages, 'page')}",
        f"{text.count(origin.queued)} queued",
        f"{origin.active} active",
    ]
    if origin.paused:
        facts.append("paused")
    if origin.rest_until_ms > now_ms:
        facts.append(f"resting until {text.moment(origin.rest_until_ms)} (level {origin.backoff_level})")
    elif origin.next_start_ms > now_ms:
        facts.append(f"next start in {text.duration((origin.next_start_ms - now_ms) / 1_000)}")
    yield row("origin", f"{text.safe(origin.origin)}: {', '.join(facts)}")


def _detail(line: UrlLine) -> str:
    return text.safe(text.shortened(line.detail, 120))


def _robots(origin: OriginLine, file: UrlLine | None) -> str:
    """The decision, and where it forbids everything the reason why the file could not be had."""
    outcome = RobotsOutcome(origin.robots_outcome)
    said = _ROBOTS[outcome]
    tried = outcome is RobotsOutcome.MISSING and file is not None and file.tries > 0
    if tried and file is not None:
        said = f"unreachable so far, tried {'once' if file.tries == 1 else f'{file.tries} times'}"
    if (tried or outcome in _UNREACHABLE) and file is not None and file.reason:
        said += f"; because of {file.reason}" + (f" ({_detail(file)})" if file.detail else "")
    if origin.robots_fetched_ms:
        said += f"; fetched {text.moment(origin.robots_fetched_ms)}, good until {text.moment(origin.robots_expires_ms)}"
    if origin.crawl_delay_ms:
        said += f"; Crawl-delay {text.duration(origin.crawl_delay_ms / 1_000)}"
    return said


# --- dry runs, findings, settings --------------------------------------------------------------------------------


def dry_run_lines(run: DryRun) -> Iterator[str]:
    """Every judge's answer, then the verdict."""
    for step in run.steps:
        yield row(step.name, _step(step))
    told = all(step.passed for step in run.steps)
    verdict = "would be fetched" if told else "would be fetched, if what is not known yet allows it"
    yield row("verdict", verdict if run.fetched else "would not be fetched")


def _step(step: Step) -> str:
    if step.passed is False:
        return f"no: {_reason(step.reason, step.detail)}"
    said = "yes" if step.passed else "not known yet"
    return f"{said}: {text.safe(step.detail)}" if step.detail else said


_SIGNS = {Verdict.GOOD: "ok", Verdict.NOTE: "note", Verdict.PROBLEM: "PROBLEM"}


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """What doctor found, one line each, the fix behind it."""
    found = list(findings)
    width = max((len(item.name) for item in found), default=0)
    for item in found:
        fix = f"; {item.fix}" if item.fix else ""
        yield f"{_SIGNS[item.verdict]:<8} {item.name:<{width}}  {text.safe(item.detail)}{fix}"


def setting_lines(values: Mapping[str, Effective]) -> Iterator[str]:
    """What is in force: value, unit, where it comes from, and the default where it is another."""
    for section in SECTIONS:
        own = [item for item in values.values() if item.setting.section == section]
        yield f"[{section}]"
        for item in own:
            value = shown(item.setting, item.value) or '""'
            unit = f" {item.setting.unit}" if item.setting.unit else ""
            default = shown(item.setting, item.setting.default) or '""'
            source = item.source if item.source == "default" else f"{item.source}; default {default}"
            yield f"  {item.setting.key:<28} {value + unit:<28} {source}"
