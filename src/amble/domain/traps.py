"""Bounds on what a URL may look like and how far it may be: sites without end must not become crawls without end."""

from __future__ import annotations

from functools import lru_cache

from amble.domain.decision import Reason, Rejected
from amble.domain.destination import REFUSED_PORTS
from amble.domain.policy import UrlLimits


def judge_distance(*, depth: int, hops: int, limits: UrlLimits) -> Rejected | None:
    """None when a URL this many links and redirects away may be admitted."""
    if depth > limits.depth_max:
        return Rejected(Reason.TOO_DEEP, f"{depth} links from a seed, at most {limits.depth_max}")
    if hops > limits.hops_max:
        return Rejected(Reason.TOO_MANY_HOPS, f"{hops} redirects in a row, at most {limits.hops_max}")
    return None


def judge_shape(url: str, limits: UrlLimits) -> Rejected | None:
    """None when nothing about the canonical `url` itself looks like a trap; the answer depends on nothing else."""
    if len(url) > limits.url_chars_max:
        return Rejected(Reason.URL_TOO_LONG, f"{len(url)} characters, at most {limits.url_chars_max}")
    host = url.index("://") + 3
    slash = url.index("/", host)
    if url.find(":", host, slash) > 0 and (port := _refused_port(url[host:slash])):
        return Rejected(Reason.PORT_REFUSED, f"port {port} is not for HTTP")
    if "?" not in url and url.count("/", slash) < min(limits.path_repeats_max, limits.path_segments_max):
        return None  # too short a path for any trap, as most are
    path, _, query = url[slash + 1 :].partition("?")
    if query and (params := query.count("&") + 1) > limits.query_params_max:
        return Rejected(Reason.QUERY_TOO_WIDE, f"{params} parameters, at most {limits.query_params_max}")
    return _judge_path(path.split("/"), limits)


@lru_cache(maxsize=1_024)
def _refused_port(authority: str) -> str:
    """The port after a host, if requests may not go to it; else ""."""
    port = authority.rpartition(":")[2]
    return port if port.isdigit() and int(port) in REFUSED_PORTS else ""


def _judge_path(segments: list[str], limits: UrlLimits) -> Rejected | None:
    if len(segments) > limits.path_segments_max:
        return Rejected(
            Reason.PATH_TOO_DEEP, f"{len(segments)} path segments, at most {limits.path_segments_max}"
        )
    if len(segments) < limits.path_repeats_max or len(set(segments)) == len(segments):
        return None
    for segment in set(segments):
        times = segments.count(segment)
        if segment and times > limits.path_repeats_max:
            return Rejected(
                Reason.PATH_REPEATS, f"/{segment} {times} times, at most {limits.path_repeats_max}"
            )
    return _judge_runs(segments, limits.path_repeats_max)


def _judge_runs(segments: list[str], times: int) -> Rejected | None:
    """A run of two or more segments that stands `times` times in a row (/a/b/a/b/a/b) leads round in a circle."""
    if times < 2:
        return None
    for width in range(2, len(segments) // times + 1):
        same = 0
        for at in range(width, len(segments)):
            same = same + 1 if segments[at] == segments[at - width] else 0
            if same == width * (times - 1):
                run = "/".join(segments[at - width + 1 : at + 1])
                return Rejected(Reason.PATH_REPEATS, f"/{run} {times} times in a row")
    return None
