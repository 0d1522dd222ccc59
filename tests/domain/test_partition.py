"""Which partition a URL belongs to, and how agents come to an even share of the partitions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amble.domain.partition import PartitionMap, share_of, to_claim, to_hand_over

Owners = dict[int, str]
NAMES = st.sets(st.text("abcdefghij", min_size=1, max_size=3), min_size=1, max_size=7)


def test_every_scheme_port_and_subdomain_of_a_site_lies_in_one_partition() -> None:
    of = PartitionMap(hashed=64).of
    keys = ("https://example.org", "http://example.org", "https://example.org:8443", "http://a.b.example.org")
    assert len({of(key) for key in keys}) == 1
    assert len({of(f"https://site{number}.example") for number in range(300)}) > 50


def test_a_site_apart_has_a_partition_of_its_own_and_moves_nobody_else() -> None:
    plain, apart = PartitionMap(hashed=4), PartitionMap(hashed=4, apart={"busy.example": 4})
    assert apart.of("https://www.busy.example") == apart.of("http://busy.example:81") == 4
    for number in range(50):
        assert plain.of(f"https://site{number}.example") == apart.of(f"https://site{number}.example")


def test_one_partition_holds_everything() -> None:
    assert PartitionMap().of("https://example.org") == 0


@pytest.mark.parametrize(
    ("owned", "free", "shares"),
    [
        ({}, 5, {}),
        ({"a": 0}, 5, {"a": 5}),
        ({"a": 0, "b": 0}, 5, {"a": 3, "b": 2}),
        ({"a": 2, "b": 3}, 0, {"a": 2, "b": 3}),  # whoever has one more keeps it
        ({"a": 0, "b": 2, "c": 2}, 0, {"a": 1, "b": 2, "c": 1}),
        ({"a": 0, "b": 0, "c": 1}, 0, {"a": 0, "b": 0, "c": 1}),  # fewer partitions than agents
    ],
)
def test_shares_are_even_and_the_remainder_stays_where_it_is(
    owned: dict[str, int], free: int, shares: dict[str, int]
) -> None:
    names = [name for name, count in owned.items() for _ in range(count)] + [""] * free
    assert share_of(list(owned), dict(enumerate(names))) == shares


def test_agents_that_choose_at_the_same_moment_rarely_try_for_the_same() -> None:
    agents, owners = ["a", "b", "c", "d"], dict.fromkeys(range(64), "")
    wanted = Counter(partition for agent in agents for partition in to_claim(agent, agents, owners))
    assert len(wanted) > 40, "of 64 wishes"


def test_one_that_leaves_hands_over_everything_and_claims_nothing() -> None:
    owners = {0: "a", 1: "b", 2: "a", 3: ""}
    assert sorted(to_hand_over("a", ["b"], owners)) == [0, 2]
    assert to_claim("a", ["b"], owners) == []


def round_of(agents: set[str], owners: Owners, order: list[str]) -> int:
    """All agents decide from the same facts; the store decides between those who want the same. How many changed."""
    facts, moved = dict(owners), 0
    for agent in order:
        for partition in to_claim(agent, agents, facts):
            if not owners[partition]:
                owners[partition] = agent
                moved += 1
    for agent in order:
        for partition in to_hand_over(agent, agents, facts):
            owners[partition] = ""
            moved += 1
    return moved


def settle(agents: set[str], owners: Owners, order: list[str]) -> int:
    moved = 0
    for _ in range(2 * len(agents) + 8):
        step = round_of(agents, owners, order)
        moved += step
        if not step:
            return moved
    raise AssertionError(f"no rest: {owners}")


def is_even(agents: set[str], owners: Owners) -> bool:
    counts = Counter(owners.values())
    held = [counts[agent] for agent in agents]
    return not counts[""] and sum(held) == len(owners) and max(held) - min(held) <= 1


@given(st.integers(0, 40), st.lists(NAMES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_however_agents_come_and_go_they_reach_an_even_share_and_then_nothing_moves(
    count: int, fleets: list[set[str]], dice: object
) -> None:
    owners: Owners = dict.fromkeys(range(count), "")
    for fleet in fleets:
        for partition, owner in owners.items():
            if owner not in fleet:
                owners[partition] = ""  # its agent is gone, and the lease with it
        order = sorted(fleet)
        dice.shuffle(order)  # type: ignore[attr-defined]
        settle(fleet, owners, order)
        assert is_even(fleet, owners)
        assert round_of(fleet, owners, order) == 0


@given(st.integers(0, 40), NAMES, st.sampled_from("kl"), st.randoms(use_true_random=False))
def test_a_newcomer_gets_its_share_with_as_few_moves_as_can_be(
    count: int, fleet: set[str], newcomer: str, dice: object
) -> None:
    owners: Owners = dict.fromkeys(range(count), "")
    order = sorted(fleet)
    settle(fleet, owners, order)
    before, least = dict(owners), count // (len(fleet) + 1)
    order.append(newcomer)
    dice.shuffle(order)  # type: ignore[attr-defined]
    settle(fleet | {newcomer}, owners, order)
    moved = [partition for partition, owner in owners.items() if owner != before[partition]]
    assert all(owners[partition] == newcomer for partition in moved)
    assert len(moved) == least


@given(st.integers(1, 40), NAMES, st.randoms(use_true_random=False))
def test_what_one_leaves_behind_is_divided_and_nothing_else_moves(
    count: int, fleet: set[str], dice: object
) -> None:
    fleet = fleet | {"zz"}
    owners: Owners = dict.fromkeys(range(count), "")
    settle(fleet, owners, sorted(fleet))
    before = dict(owners)
    left = [partition for partition, owner in owners.items() if owner == "zz"]
    for partition in left:
        owners[partition] = ""
    rest = sorted(fleet - {"zz"})
    dice.shuffle(rest)  # type: ignore[attr-defined]
    settle(set(rest), owners, rest)
    assert all(owners[partition] == before[partition] for partition in owners if partition not in left)
    assert is_even(set(rest), owners)


@given(st.integers(0, 24), NAMES, st.randoms(use_true_random=False))
def test_agents_that_decide_one_after_the_other_or_from_old_facts_come_to_rest_too(
    count: int, fleet: set[str], dice: object
) -> None:
    owners: Owners = dict.fromkeys(range(count), "")
    views = {agent: dict(owners) for agent in fleet}
    for _ in range(12 * len(fleet) + 40):
        agent = dice.choice(sorted(fleet))  # type: ignore[attr-defined]
        for partition in to_hand_over(agent, fleet, views[agent]):
            if owners[partition] == agent:
                owners[partition] = ""
        for partition in to_claim(agent, fleet, views[agent]):
            if not owners[partition]:
                owners[partition] = agent
        views[agent] = dict(owners)
    order = sorted(fleet)
    settle(fleet, owners, order)
    assert is_even(fleet, owners)
