"""Answers of the commands that look after a crawl: export, verify, doctor. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a finding of `doctor` is to be taken."""

    GOOD = "good"
    NOTE = "note"  # works, but could be better
    PROBLEM = "problem"  # a crawl would fail or be unsafe


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that `doctor` looked at. `fix` says what to do; "" where there is nothing to do."""

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""


def good(name: str, detail: str) -> Finding:
    """All is well."""
    return Finding(name=name, verdict=Verdict.GOOD, detail=detail)


def note(name: str, detail: str, fix: str) -> Finding:
    """It works, but could be better."""
    return Finding(name=name, verdict=Verdict.NOTE, detail=detail, fix=fix)


def problem(name: str, detail: str, fix: str) -> Finding:
    """A crawl would fail or be unsafe."""
    return Finding(name=name, verdict=Verdict.PROBLEM, detail=detail, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What one export wrote. `documents` in this run, `position` of the last publication that the target now holds."""

    documents: int
    position: int
    target: str
    skipped: tuple[str, ...] = ()  # documents whose records are damaged, each with its reason
