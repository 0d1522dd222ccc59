"""What one command line means: which folder, which configuration, and what of it is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amble.app.config import Given
from amble.app.folder import (
    Plan,
    Wishes,
    default_folder,
    is_crawl_folder,
    keep,
    mark_moved,
    plan,
    refuse_elsewhere,
    seeds_of,
)
from amble.domain.errors import ConfigErrors, CrawlFolderUnusable

SEED = "http://a.test:8000/"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(**wishes: object) -> Plan:
    made = plan(Wishes(seeds=(SEED,), **wishes), {})  # type: ignore[arg-type]
    keep(made)
    return made


def mistakes(wishes: Wishes) -> str:
    with pytest.raises(ConfigErrors) as caught:
        plan(wishes, {})
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize(
    ("seed", "name"),
    [
        ("https://example.org/a/b", "crawl-example.org"),
        ("https://example.org:8443/", "crawl-example.org-8443"),
        ("http://[::1]:8000/", "crawl-1-8000"),
        ("http://bücher.example/", "crawl-xn--bcher-kva.example"),
    ],
)
def test_the_folder_is_named_after_the_first_seed(seed: str, name: str) -> None:
    assert default_folder(seed) == Path(name)


def test_a_plan_writes_nothing() -> None:
    made = plan(Wishes(seeds=(SEED,)), {})
    assert made.folder == Path("crawl-a.test-8000")
    assert not made.resumes
    assert not made.folder.exists()


def test_the_same_command_again_resumes_with_what_was_said_before() -> None:
    begun(flags={"budget.pages_max": Given("7", "--pages")})
    again = plan(Wishes(seeds=(SEED,)), {})
    assert again.resumes
    assert again.config.policy.budget.pages_max == 7
    assert again.new_seeds == ()
    assert again.new_values == {}


def test_out_alone_resumes() -> None:
    made = begun()
    again = plan(Wishes(out=made.folder), {})
    assert again.config == made.config


def test_new_seeds_and_limits_are_applied_and_kept() -> None:
    made = begun()
    other = "http://a.test:9000/"
    more = plan(
        Wishes(seeds=(other,), out=made.folder, flags={"budget.pages_max": Given("9", "--pages")}), {}
    )
    assert more.config.seeds == (SEED, other)
    assert more.new_seeds == (other,)
    keep(more)
    again = plan(Wishes(out=made.folder), {})
    assert again.config.seeds == (SEED, other)
    assert again.config.policy.budget.pages_max == 9
    assert again.values["budget.pages_max"].source == "amble.toml"


def test_the_environment_counts_for_one_run_only() -> None:
    made = plan(Wishes(seeds=(SEED,)), {"AMBLE_BUDGET_PAGES_MAX": "3"})
    assert made.config.policy.budget.pages_max == 3
    keep(made)
    assert plan(Wishes(out=made.folder), {}).config.policy.budget.pages_max == 10_000


def test_a_flag_hidden_by_nothing_wins_over_file_and_environment(here: Path) -> None:
    (here / "team.toml").write_text("[budget]\npages_max = 5\n[origin]\nactive_max = 3\n")
    wishes = Wishes(
        seeds=(SEED,),
        config_file=here / "team.toml",
        assignments=("budget.pages_max=6",),
        flags={"budget.pages_max": Given("8", "--pages")},
    )
    made = plan(wishes, {"AMBLE_BUDGET_PAGES_MAX": "7"})
    assert made.config.policy.budget.pages_max == 8
    assert made.config.policy.origin.active_max == 3
    assert made.values["origin.active_max"].source == "team.toml"
    keep(made)
    assert plan(Wishes(out=made.folder), {}).config.policy.origin.active_max == 3


@pytest.mark.parametrize(
    ("wishes", "told"),
    [
        (Wishes(), "nothing to crawl: give a URL"),
        (Wishes(out=Path("nowhere")), "there is no crawl to go on with"),
        (Wishes(seeds=(SEED,), out=Path("file")), "that is a file; name a folder"),
        (Wishes(seeds=(SEED,), out=Path("photos")), "holds other things"),
        (Wishes(seeds=(SEED,), config_file=Path("none.toml")), "none.toml: cannot be read"),
        (Wishes(seeds=(SEED,), config_file=Path("latin.toml")), "byte 0 is not UTF-8"),
        (Wishes(seeds=(SEED,), assignments=("fetch.total_s",)), "write section.key=value"),
        (Wishes(seeds=(SEED,), assignments=("fetch.totals=1",)), "did you mean fetch.total_s?"),
    ],
)
def test_what_cannot_be_done_is_told_with_the_fix(here: Path, wishes: Wishes, told: str) -> None:
    (here / "file").write_text("x")
    (here / "photos").mkdir()
    (here / "photos" / "cat.jpg").write_text("x")
    (here / "latin.toml").write_bytes(b"\xe9 = 1")
    assert told in mistakes(wishes)


def test_an_empty_folder_may_be_named(here: Path) -> None:
    (here / "mine").mkdir()
    begun(out=Path("mine"))
    assert is_crawl_folder(Path("mine"))


def test_a_folder_that_an_earlier_try_left_half_made_is_taken(here: Path) -> None:
    (here / "mine" / "run").mkdir(parents=True)
    begun(out=Path("mine"))


def test_a_crawl_whose_frontier_is_gone_does_not_begin_anew_beside_its_pages(here: Path) -> None:
    begun(out=Path("mine"))
    (here / "mine" / "archive").mkdir()
    (here / "mine" / "archive" / "amble-1.warc.gz").write_bytes(b"")
    assert "frontier.db is gone: bring it back from a copy" in mistakes(Wishes(out=Path("mine")))


def test_a_crawl_that_lost_one_of_several_files_is_left_to_the_store_which_names_it(here: Path) -> None:
    begun(out=Path("mine"))
    (here / "mine" / "archive").mkdir()
    (here / "mine" / "archive" / "amble-1.warc.gz").write_bytes(b"")
    (here / "mine" / "frontier-1.db").write_bytes(b"")
    assert plan(Wishes(out=Path("mine")), {}).resumes


def test_the_folder_of_a_fleet_is_not_crawled_by_one_process(here: Path) -> None:
    begun(out=Path("mine"), assignments=("store.url=postgresql://localhost/crawl",))
    (here / "mine" / "postgres").mkdir()
    with pytest.raises(CrawlFolderUnusable, match="go on with `amble fleet --out mine`"):
        refuse_elsewhere(plan(Wishes(out=Path("mine")), {}))


def test_a_database_in_the_environment_is_not_passed_over_by_a_crawl(here: Path) -> None:
    begun(out=Path("mine"))
    refuse_elsewhere(plan(Wishes(out=Path("mine")), {}))
    made = plan(Wishes(out=Path("mine")), {"AMBLE_STORE_URL": "postgresql://localhost/crawl"})
    with pytest.raises(CrawlFolderUnusable, match=r"store.url \(AMBLE_STORE_URL\) names a database"):
        refuse_elsewhere(made)


def test_a_crawl_that_was_moved_is_refused_until_its_mark_is_taken_away(here: Path) -> None:
    begun(out=Path("mine"))
    mark_moved(Path("mine"), "postgresql://db.test/crawl")
    with pytest.raises(
        CrawlFolderUnusable, match=r"moved to postgresql://db.test/crawl .* remove mine/moved.txt"
    ):
        refuse_elsewhere(plan(Wishes(out=Path("mine")), {}))
    (here / "mine" / "moved.txt").unlink()
    refuse_elsewhere(plan(Wishes(out=Path("mine")), {}))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_told(here: Path) -> None:
    (here / "locked").mkdir(mode=0o500)
    made = plan(Wishes(seeds=(SEED,), out=Path("locked/x")), {})
    with pytest.raises(CrawlFolderUnusable, match="mend its permissions"):
        keep(made)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_settings_that_may_not_be_read_are_a_matter_of_permissions(here: Path) -> None:
    begun(out=Path("mine"))
    (here / "mine" / "amble.toml").chmod(0)
    assert "mend its permissions" in mistakes(Wishes(out=Path("mine")))


def test_a_folder_that_cannot_be_made_is_told(here: Path) -> None:
    (here / "file").write_text("x")
    made = plan(Wishes(seeds=(SEED,), out=Path("file/x")), {})
    with pytest.raises(CrawlFolderUnusable, match="file/x"):
        keep(made)


def test_a_list_of_seeds_has_comments_and_blank_lines() -> None:
    assert seeds_of("# mine\n\n https://a.example/ \r\n#https://b.example/\nhttps://c.example/#x") == [
        "https://a.example/",
        "https://c.example/#x",
    ]
