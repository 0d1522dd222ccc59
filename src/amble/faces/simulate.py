"""The command that plays seeds of the simulator and shows what the judges saw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from amble.faces.options import JsonOption

if TYPE_CHECKING:
    from amble.sim.campaign import Campaign, Job
    from amble.sim.seed import Verdict

_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})\Z")
SEEDS_MAX = 1_000_000
_SCALE = "The scale model"


def simulate(
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="One seed, and its story when it fails.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="A..B", help="All seeds from A to B, over all cores. Default 0..199."),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            metavar="calm|default|hostile|divided",
            help="How much goes wrong; divided: default, over three frontier files.",
        ),
    ] = "default",
    days: Annotated[
        float | None, typer.Option(metavar="D", min=0.0, help="Faults go on for so many virtual days.")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", metavar="", help="Everything that happened, with --seed.")
    ] = False,
    scale: Annotated[
        bool,
        typer.Option(
            "--scale",
            metavar="",
            help="The scale model instead: many origins, weeks, no bytes, no faults.",
            rich_help_panel=_SCALE,
        ),
    ] = False,
    origins: Annotated[
        str | None, typer.Option(metavar="N", help="How many origins. Default 20000.", rich_help_panel=_SCALE)
    ] = None,
    largest: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Pages of the largest; the n-th has N/n. Default 2000.", rich_help_panel=_SCALE
        ),
    ] = None,
    spacing: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="Seconds between two starts at one origin. Default 2.", rich_help_panel=_SCALE
        ),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N", help="Requests at once over all. Default 4000.", rich_help_panel=_SCALE),
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option(metavar="S", help="End after so much real time. Default 600.", rich_help_panel=_SCALE),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Play the crawl in a seeded world full of faults, on virtual time, under judges. One seed is always the same story.

    With --scale: how near scheduler, gate and store come to what the origins permit, and who waits how long.
    """
    sizes = {"--origins": origins, "--largest": largest, "--spacing": spacing}
    sizes |= {"--concurrency": concurrency, "--seconds": seconds}
    if scale:
        return _scale(sizes, seed, days, as_json=as_json, other=seeds is not None or trace)
    from amble.domain.errors import ConfigErrors
    from amble.faces.exits import ExitCode
    from amble.sim.campaign import Job
    from amble.sim.faults import PROFILES

    if any(sizes.values()):
        raise ConfigErrors([f"{name} needs --scale" for name, text in sizes.items() if text is not None])
    if profile not in PROFILES:
        raise ConfigErrors([f"--profile {profile!r} is not accepted: give one of {', '.join(PROFILES)}"])
    if seed is not None:
        passed = _one(Job(seed, profile, days), trace=trace, as_json=as_json)
    else:
        first, last = _range(seeds or "0..199")
        passed = _many([Job(number, profile, days) for number in range(first, last + 1)], as_json=as_json)
    return 0 if passed else int(ExitCode.FOUND)


def _scale(
    sizes: dict[str, str | None], seed: int | None, days: float | None, *, as_json: bool, other: bool
) -> int:
    from amble.domain.errors import ConfigErrors
    from amble.faces.scale import run_scale

    if other:
        raise ConfigErrors(["--scale plays one seed and keeps no story: leave out --seeds and --trace"])
    numbers = {"--seed": seed, "--days": days}
    texts = {name: None if value is None else str(value) for name, value in numbers.items()}
    return run_scale({**texts, **sizes}, as_json=as_json)


def _range(text: str) -> tuple[int, int]:
    from amble.domain.errors import ConfigErrors

    match = _RANGE.match(text)
    if match is None or int(match[1]) > int(match[2]) or int(match[2]) - int(match[1]) >= SEEDS_MAX:
        raise ConfigErrors([f"--seeds {text!r} is not accepted: give a first and a last one, such as 0..199"])
    return int(match[1]), int(match[2])


def _one(job: Job, *, trace: bool, as_json: bool) -> bool:
    from amble.faces import output
    from amble.sim.campaign import shrink, story

    verdict = job.play(keep_trace=trace)
    if as_json:
        output.write_json(_summary(verdict))
        return verdict.passed
    if trace:
        output.write_lines(verdict.trace)
    output.write_lines(_lines(verdict))
    if not verdict.passed and not trace:
        smallest, told = shrink(job)
        output.write_lines(["", *_how(smallest), *story(told)])
    return verdict.passed


def _many(jobs: list[Job], *, as_json: bool) -> bool:
    from amble.faces import output
    from amble.sim.campaign import Campaign, play_all

    campaign = Campaign(jobs[0].profile)
    for verdict in play_all(jobs):
        campaign.add(verdict)
        if as_json:
            output.write_json(_summary(verdict))
        elif not verdict.passed:
            output.write_lines(_lines(verdict))
    missing = campaign.missing()
    if as_json:
        output.write_json({"faults": campaign.faults, "reached": campaign.reached, "missing": missing})
    else:
        output.write_lines(_campaign_lines(campaign, missing))
    return not campaign.failed and not missing


def _summary(verdict: Verdict) -> dict[str, object]:
    return {
        "seed": verdict.seed,
        "profile": verdict.profile,
        "passed": verdict.passed,
        "hash": verdict.hash,
        "virtual_s": round(verdict.virtual_s, 3),
        "steps": verdict.steps,
        "lives": verdict.lives,
        "requests": verdict.requests,
        "urls": verdict.urls,
        "faults": verdict.faults,
        "reached": verdict.reached,
        "violations": [
            {"judge": item.judge, "at_s": item.at_s, "detail": item.detail} for item in verdict.violations
        ],
    }


def _lines(verdict: Verdict) -> list[str]:
    word = "passed" if verdict.passed else "FAILED"
    head = (
        f"seed {verdict.seed} {verdict.profile}: {word}; {verdict.virtual_s:.0f} virtual seconds, {verdict.lives} lives, "
        f"{verdict.urls} URLs, {verdict.requests} requests, {sum(verdict.faults.values())} faults; {verdict.hash[:16]}"
    )
    return [head, *(f"  {violation}" for violation in verdict.violations[:10])]


def _how(job: Job) -> list[str]:
    """The smallest case in words."""
    from amble.sim.faults import Fault

    left = sorted(set(Fault) - job.off) if job.off else ["all of the profile"]
    size = f"; {job.origins} origins, about {job.pages} pages" if job.origins else ""
    return [f"smallest case found: seed {job.seed} {job.profile}{size}; faults left: {', '.join(left)}"]


def _campaign_lines(campaign: Campaign, missing: list[str]) -> list[str]:
    lines = [
        f"{campaign.seeds} seeds {campaign.profile}: {len(campaign.failed)} failed; {campaign.requests} requests, "
        f"{campaign.lives} lives, {campaign.virtual_s / 3600:.1f} virtual hours",
    ]
    if campaign.faults:
        told = ", ".join(f"{name} {times}" for name, times in sorted(campaign.faults.items()))
        lines.append(f"faults: {told}")
    if missing:
        lines.append(f"never reached: {', '.join(missing)}")
    if campaign.failed:
        seeds = ", ".join(str(verdict.seed) for verdict in campaign.failed[:20])
        lines.append(
            f"look closer with `amble simulate --seed N --profile {campaign.profile}`; failed: {seeds}"
        )
    return lines
