"""The composition root of `amble doctor`: tries out the adapters that depend on the machine, each in one probe."""

from __future__ import annotations

import asyncio
from pathlib import Path

from amble.adapters.net.resolver import DnsResolver
from amble.adapters.sandbox.pool import SandboxPool
from amble.adapters.system import SystemClock
from amble.app.config import CrawlConfig
from amble.app.doctor import examine
from amble.app.findings import Finding, Verdict
from amble.domain.errors import AmbleError
from amble.domain.policy import ParseLimits
from amble.ports import ResolveFailure

# A name that exists nowhere: what counts is that the server says so.
DOCTOR_HOST = "amble-doctor.invalid"


def doctor(place: Path, config: CrawlConfig) -> list[Finding]:
    """What this machine lacks for crawling, one finding each."""
    findings = examine(place, (_sandbox_finding, lambda: _resolver_finding(config)))
    if config.fleet.store_url:
        # Its driver is loaded by those who have one.
        from amble.app.probes_database import databases

        findings += databases(config.fleet.store_url)
    if config.fleet.archive_url:
        from amble.app.probes_bucket import bucket

        findings += bucket(config.fleet.archive_url)
    return findings


def _sandbox_finding() -> Finding:
    async def look() -> dict[str, list[str]]:
        pool = await SandboxPool.open(limits=ParseLimits(), size=1)
        try:
            return pool.confinement
        finally:
            await pool.close()

    try:
        held = asyncio.run(look())
    except AmbleError as error:
        return Finding(
            name="sandbox",
            verdict=Verdict.PROBLEM,
            detail=str(error),
            fix="see the message; no page can be parsed",
        )
    detail = "parser children are held by " + (", ".join(held["holding"]) or "nothing")
    if held["missing"]:
        return Finding(
            name="sandbox",
            verdict=Verdict.NOTE,
            detail=f"{detail}; not by {', '.join(held['missing'])}",
            fix="a newer kernel confines hostile pages better",
        )
    return Finding(name="sandbox", verdict=Verdict.GOOD, detail=detail)


def _resolver_finding(config: CrawlConfig) -> Finding:
    async def look() -> ResolveFailure | None:
        resolver = DnsResolver([config.resolver] if config.resolver else [], SystemClock())
        try:
            answer = await resolver.resolve(DOCTOR_HOST)
            return answer if isinstance(answer, ResolveFailure) else None
        finally:
            await resolver.close()

    name = config.resolver or "the system's name server"
    failure = asyncio.run(look())
    if failure is not None and failure.unavailable:
        return Finding(
            name="resolver",
            verdict=Verdict.PROBLEM,
            detail=f"{name} does not answer: {failure.detail}",
            fix="mend the network, or name another with --resolver ADDR:PORT",
        )
    return Finding(name="resolver", verdict=Verdict.GOOD, detail=f"{name} answers")
