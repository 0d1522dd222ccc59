"""Bounds of URLs: each limit at its edge, and shapes that lead round in circles."""

from __future__ import annotations

import pytest

from amble.domain.decision import Reason
from amble.domain.policy import UrlLimits
from amble.domain.traps import judge_distance, judge_shape

LIMITS = UrlLimits()
HOST = "http://a.example"


def reason(url: str, limits: UrlLimits = LIMITS) -> Reason | None:
    rejected = judge_shape(url, limits)
    assert rejected is None or rejected.detail
    return None if rejected is None else rejected.reason


def test_a_url_may_have_as_many_characters_as_the_limit_says() -> None:
    edge = f"{HOST}/{'a' * (LIMITS.url_chars_max - len(HOST) - 1)}"
    assert reason(edge) is None
    assert reason(f"{edge}a") is Reason.URL_TOO_LONG


def test_a_path_may_have_as_many_segments_as_the_limit_says() -> None:
    edge = HOST + "".join(f"/{number}" for number in range(LIMITS.path_segments_max))
    assert reason(edge) is None
    assert reason(f"{edge}/x") is Reason.PATH_TOO_DEEP


def test_a_query_may_have_as_many_parameters_as_the_limit_says() -> None:
    edge = f"{HOST}/?" + "&".join(["a"] * LIMITS.query_params_max)
    assert reason(edge) is None
    assert reason(f"{edge}&a") is Reason.QUERY_TOO_WIDE


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", None),
        ("/a", None),
        ("/a/a/a", None),
        ("/a/a/a/a", Reason.PATH_REPEATS),
        ("/a/b/a/c/a/d/a", Reason.PATH_REPEATS),
        ("/a/b/a/c/a/d/A", None),
        ("/a/b/a/b", None),
        ("/a/b/a/b/a/b", Reason.PATH_REPEATS),
        ("/x/a/b/a/b/a/b/y", Reason.PATH_REPEATS),
        ("/a/b/c/a/b/c/a/b/c", Reason.PATH_REPEATS),
        ("/a/b/c/a/b/c/a/b", None),
        ("/a/b/a/b/x/a/b", None),
        ("/2024/01/01/01", None),
        ("/a//b//c//d//e", None),
        ("/a/?b/b/b/b/b", None),
    ],
)
def test_a_path_that_goes_round_in_circles_is_a_trap(path: str, expected: Reason | None) -> None:
    assert reason(HOST + path) is expected


def test_a_detail_names_what_repeats() -> None:
    rejected = judge_shape(f"{HOST}/x/a/b/a/b/a/b", LIMITS)
    assert rejected is not None
    assert rejected.detail == "/a/b 3 times in a row"


def test_one_repeat_can_be_the_limit() -> None:
    strict = UrlLimits(path_repeats_max=1)
    assert reason(f"{HOST}/a/b/c", strict) is None
    assert reason(f"{HOST}/a/b/a", strict) is Reason.PATH_REPEATS


@pytest.mark.parametrize(
    ("authority", "expected"),
    [
        ("a.example", None),
        ("a.example:8080", None),
        ("a.example:25", Reason.PORT_REFUSED),
        ("a.example:22", Reason.PORT_REFUSED),
        ("a.example:6667", Reason.PORT_REFUSED),
        ("a.example:0", Reason.PORT_REFUSED),
        ("[::1]", None),
        ("[::25]", None),
        ("[::1]:25", Reason.PORT_REFUSED),
        ("[::1]:443", None),
    ],
)
def test_ports_of_other_services_are_refused(authority: str, expected: Reason | None) -> None:
    assert reason(f"http://{authority}/x:25") is expected


@pytest.mark.parametrize(
    ("depth", "hops", "expected"),
    [
        (0, 0, None),
        (LIMITS.depth_max, LIMITS.hops_max, None),
        (LIMITS.depth_max + 1, 0, Reason.TOO_DEEP),
        (0, LIMITS.hops_max + 1, Reason.TOO_MANY_HOPS),
    ],
)
def test_distance_is_bounded(depth: int, hops: int, expected: Reason | None) -> None:
    rejected = judge_distance(depth=depth, hops=hops, limits=LIMITS)
    assert (None if rejected is None else rejected.reason) is expected
