"""Settings in layers become one frozen tree, and every mistake is told at once."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amble.app import tomlfile
from amble.app.config import CrawlConfig, Given, agent_tokens, from_toml, resolve
from amble.app.settings import SECTIONS, SETTINGS, SettingValue
from amble.domain.errors import ConfigErrors
from amble.domain.policy import OriginPolicy, Policy, ScopeKind

LOCAL = ["http://a.test:8000/"]


def mistakes(toml: str = "", **rest: object) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        CrawlConfig.parse(toml, **rest)  # type: ignore[arg-type]
    return caught.value.problems


def test_without_settings_the_policy_is_the_domains_default() -> None:
    config = CrawlConfig.parse(seeds=LOCAL)
    assert config.policy == Policy()
    assert config.seeds == ("http://a.test:8000/",)
    assert config.scope.kind is ScopeKind.HOST


def test_every_limit_of_the_policy_is_a_named_setting() -> None:
    in_policy = {
        f"{part.name}.{item.name}"
        for part in dataclasses.fields(Policy)
        if part.name != "version"
        for item in dataclasses.fields(getattr(Policy(), part.name))
    }
    assert in_policy <= set(SETTINGS)


def test_every_setting_has_a_section_and_a_reason() -> None:
    for setting in SETTINGS.values():
        assert setting.section in SECTIONS
        assert setting.why.endswith(".")
        assert setting.kind.accepts


def test_every_default_is_a_value_that_its_own_setting_accepts() -> None:
    problems: list[str] = []
    text = tomlfile.template({name: setting.default for name, setting in SETTINGS.items()})
    values = resolve([from_toml(text, "all.toml", problems)], problems)
    assert problems == []
    assert {name: value.value for name, value in values.items()} == {
        name: setting.default for name, setting in SETTINGS.items()
    }


def test_the_commented_template_changes_nothing() -> None:
    assert CrawlConfig.parse(tomlfile.template({}), seeds=LOCAL) == CrawlConfig.parse(seeds=LOCAL)


@pytest.mark.parametrize(
    ("toml", "setting", "value"),
    [
        ("[fetch]\ntotal_s = 90", "fetch.total_s", 90.0),
        ('[fetch]\ntotal_s = "2m"', "fetch.total_s", 120.0),
        ('[origin]\nspacing_ms = "500ms"', "origin.spacing_ms", 500),
        ('[origin]\nspacing_ms = "3s"', "origin.spacing_ms", 3_000),
        ("[origin]\nspacing_ms = 250", "origin.spacing_ms", 250),
        ('[fetch]\nbody_bytes_max = "2MiB"', "fetch.body_bytes_max", 2 * 1024 * 1024),
        ('[fetch]\nbody_bytes_max = "3 kB"', "fetch.body_bytes_max", 3_000),
        ('[budget]\npages_max = "unlimited"', "budget.pages_max", None),
        ('[parse]\nchildren = "auto"', "parse.children", 0),
        ('[network]\nresolver = "127.0.0.1"', "network.resolver", "127.0.0.1:53"),
        ('[network]\nresolver = "[::1]:5353"', "network.resolver", "[::1]:5353"),
        ('[network]\nresolver = "::1"', "network.resolver", "[::1]:53"),
        ('[network]\nallow_nets = ["10.0.0.0/8", "::1"]', "network.allow_nets", ("10.0.0.0/8", "::1/128")),
        ('[robots]\nagent_tokens = ["MyBot"]', "robots.agent_tokens", ("mybot",)),
    ],
)
def test_values_are_read_in_the_forms_people_write(toml: str, setting: str, value: SettingValue) -> None:
    problems: list[str] = []
    assert resolve([from_toml(toml, "t", problems)], problems)[setting].value == value
    assert problems == []


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("[fetch]\ntotal_s = 0", "fetch.total_s = 0 (amble.toml) is not accepted"),
        ("[fetch]\ntotal_s = true", "fetch.total_s = true (amble.toml) is not accepted"),
        ("[fetch]\ntotal_s = nan", "fetch.total_s = nan (amble.toml) is not accepted"),
        ("[fetch]\ntotal_s = 'soon'", "or a duration such as 90s"),
        ("[fetch]\nhead_lines_max = 1.5", "give a whole number, 1 or more"),
        ("[fetch]\nhead_lines_max = '12'", "give a whole number, 1 or more"),
        ("[budget]\npages_max = 0", 'give a whole number, 1 or more, or "unlimited"'),
        ("[scope]\nkind = 'galaxy'", "give one of host, site, prefix, any"),
        ("[scope]\ninclude = '/a'", "give a list of texts"),
        ("[scope]\nhosts = ['https://a.example/']", "give a bare name such as www.example.org"),
        ("[network]\nallow_nets = ['10.0.0.1/8']", "networks in CIDR form without host bits"),
        ("[network]\nresolver = 'dns.example:53'", "ADDRESS:PORT of a name server"),
        ("[network]\nresolver = '127.0.0.1:0'", "ADDRESS:PORT of a name server"),
        ("[crawl]\ncontact = 'me'", "such as https://you.example/bot"),
        ('[crawl]\nuser_agent = "a\\r\\nX: y"', "one line of printable ASCII"),
        ("[crawl]\nuser_agent = '(nobody)'", "begin with a name, such as mybot/1.0"),
        ("[archive]\nsegment_bytes = '5GiB'", "less than 4GiB"),
        ("[robots]\nagent_tokens = ['my bot']", "product tokens"),
        ("[fetch]\nconect_s = 1", "did you mean fetch.connect_s?"),
        ("[fetch]\nfoo = 1", "`amble config show` lists all of them"),
        ("[fetsch]\nconnect_s = 1", "[fetsch] is no section"),
        ("pages = 3", "[pages] is no section"),
        ("[fetch\n", "not valid TOML"),
        (
            "[fetch]\nconnect_s = 70",
            "fetch.connect_s = 70.0 (amble.toml) is more than fetch.total_s = 60.0 (default)",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_setting_and_the_fix(toml: str, told: str) -> None:
    problems = mistakes(toml, seeds=LOCAL)
    assert len(problems) == 1
    assert told in problems[0]
    assert "\n" not in problems[0]


def test_all_mistakes_of_all_layers_are_told_together() -> None:
    problems = mistakes(
        "[fetch]\ntotal_s = -1\n[nope]\nx = 1",
        env={"AMBLE_FETCH_TLS_S": "never", "AMBLE_ORIGIN_NOPE": "1"},
        given={"budget.pages_max": Given("many", "--pages")},
        seeds=["example.org", "ftp://example.org/"],
    )
    told = "\n".join(problems)
    for word in (
        "fetch.total_s",
        "[nope]",
        "AMBLE_FETCH_TLS_S",
        "origin.nope",
        "--pages 'many'",
        "example.org",
        "ftp://",
    ):
        assert word in told
    assert len(problems) == 7


def test_later_layers_win_and_each_value_knows_its_source() -> None:
    problems: list[str] = []
    values = resolve(
        [
            {"fetch.total_s": Given("10", "amble.toml"), "fetch.tls_s": Given("5", "amble.toml")},
            {"fetch.total_s": Given("20", "AMBLE_FETCH_TOTAL_S")},
            {"fetch.total_s": Given("30", "--set")},
        ],
        problems,
    )
    assert (values["fetch.total_s"].value, values["fetch.total_s"].source) == (30.0, "--set")
    assert (values["fetch.tls_s"].value, values["fetch.tls_s"].source) == (5.0, "amble.toml")
    assert values["fetch.idle_s"].source == "default"


def test_variables_of_other_programs_are_left_alone() -> None:
    CrawlConfig.parse(env={"AMBLE_HOME": "/x", "AMBLETON_FETCH_TOTAL_S": "no", "PATH": "/bin"}, seeds=LOCAL)


def test_lists_in_the_environment_take_commas_or_the_form_of_toml() -> None:
    for text in ("10.0.0.0/8, 127.0.0.0/8", '["10.0.0.0/8", "127.0.0.0/8"]'):
        config = CrawlConfig.parse(env={"AMBLE_NETWORK_ALLOW_NETS": text}, seeds=LOCAL)
        assert config.allow_nets == ("10.0.0.0/8", "127.0.0.0/8")


# --- identity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "toml", "needed"),
    [
        ("https://example.org/", "", True),
        ("https://example.org/", "[crawl]\ncontact = 'https://you.example/bot'", False),
        ("https://example.org/", "[crawl]\ncontact = 'you@you.example'", False),
        ("https://example.org/", "[crawl]\nuser_agent = 'mybot/1 (+https://you.example/bot)'", False),
        ("https://example.org/", "[crawl]\nuser_agent = 'mybot/1'", True),
        ("http://127.0.0.1:8000/", "[network]\nallow_nets = ['127.0.0.0/8']", False),
        ("http://[::1]:8000/", "[network]\nallow_nets = ['::1']", False),
        ("http://localhost:8000/", "", False),
        ("http://a.test/", "", False),
        ("http://10.1.2.3/", "[network]\nallow_nets = ['10.0.0.0/8']", False),
        ("http://a.test/", "[scope]\nkind = 'any'", True),
    ],
)
def test_a_public_crawl_must_say_who_it_is(seed: str, toml: str, needed: bool) -> None:
    if needed:
        assert "--contact https://you.example/bot" in mistakes(toml, seeds=[seed])[0]
    else:
        CrawlConfig.parse(toml, seeds=[seed])


def test_the_contact_stands_in_the_user_agent() -> None:
    config = CrawlConfig.parse("[crawl]\ncontact = 'https://you.example/bot'", seeds=LOCAL)
    assert config.user_agent.startswith("amble/")
    assert config.user_agent.endswith(" (+https://you.example/bot)")


@pytest.mark.parametrize(
    ("user_agent", "tokens"),
    [
        ("amble/0.1 (+https://you.example/bot)", ("amble",)),
        ("My_Bot", ("my_bot",)),
        ("Mozilla/5.0 (compatible; NewsFox/2.1; +https://you.example)", ("newsfox",)),
        ("Mozilla/5.0 (X11)", ("mozilla",)),
    ],
)
def test_robots_tokens_follow_the_user_agent(user_agent: str, tokens: tuple[str, ...]) -> None:
    assert agent_tokens(user_agent) == tokens
    config = CrawlConfig.parse(given={"crawl.user_agent": Given(user_agent, "--user-agent")}, seeds=LOCAL)
    assert config.policy.robots.agent_tokens == tokens


# --- seeds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "told"),
    [
        ("example.org", "did you mean https://example.org/"),
        ("example.org/a?b=c", "did you mean https://example.org/a?b=c"),
        ("localhost:8000/x", "did you mean http://localhost:8000/x"),
        ("ftp://example.org/", "http and https only"),
        ("javascript:alert(1)", "http and https only"),
        ("/etc/passwd", "not a URL"),
        ("", "not a URL"),
        ("http://", "not a URL"),
        ("http://a b/", "not a URL"),
        ("https://" + "a" * 20_000, "too long"),
    ],
)
def test_a_bad_seed_is_told_with_what_may_have_been_meant(seed: str, told: str) -> None:
    problems = mistakes(seeds=[seed])
    assert len(problems) == 1
    assert told in problems[0]
    assert len(problems[0]) < 300


def test_a_password_in_a_seed_is_refused_and_not_repeated() -> None:
    problems = mistakes(seeds=["https://user:hunter2@example.org/"])
    assert "leave that part out" in problems[0]
    assert "hunter2" not in problems[0]


def test_seeds_are_canonical_and_each_once() -> None:
    config = CrawlConfig.parse(seeds=["HTTP://A.test:80", "http://a.test/#top", " http://a.test/a "])
    assert config.seeds == ("http://a.test/", "http://a.test/a")


@pytest.mark.parametrize(
    ("seed", "net"),
    [
        ("http://127.0.0.1:8000/", "127.0.0.0/8"),
        ("http://10.1.2.3/", "10.1.2.3/32"),
        ("http://[::1]/", "::1/128"),
        ("http://169.254.169.254/", "169.254.169.254/32"),
    ],
)
def test_a_private_seed_needs_its_network_to_be_opened(seed: str, net: str) -> None:
    contact = {"crawl.contact": Given("https://you.example/bot", "--contact")}
    problems = mistakes(seeds=[seed], given=contact)
    assert problems[0].endswith(f"if it is yours, add --allow-net {net}")
    opened = {**contact, "network.allow_nets": Given([net], "--allow-net", text=False)}
    assert CrawlConfig.parse(seeds=[seed], given=opened).allow_nets == (net,)
    assert CrawlConfig.parse(seeds=[seed, "https://example.org/"], given=contact).seeds


def test_a_list_full_of_mistakes_is_shown_in_part() -> None:
    problems = mistakes(seeds=[f"nonsense {number}" for number in range(1_000)])
    assert len(problems) == 21
    assert problems[-1] == "and 980 more of this kind"


# --- the file ----------------------------------------------------------------------------------------------------


def test_what_is_written_reads_back_equal() -> None:
    values: dict[str, SettingValue] = {
        "budget.pages_max": None,
        "budget.seconds_max": 90.5,
        "origin.spacing_ms": 0,
        "origin.delay_fixed": True,
        "scope.exclude": ('/a"b\\c', "*é*"),
        "crawl.contact": "https://you.example/bot",
        "parse.children": 3,
    }
    direct = CrawlConfig.parse(
        given={
            name: Given(
                list(value) if isinstance(value, tuple) else "unlimited" if value is None else value,
                "x",
                text=False,
            )
            for name, value in values.items()
        },
        seeds=LOCAL,
    )
    assert CrawlConfig.parse(tomlfile.template(values), seeds=LOCAL) == direct
    assert direct.policy.origin == OriginPolicy(spacing_ms=0, delay_fixed=True)


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=3).map(tuple),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=3).map(tuple),
)
@settings(max_examples=60, deadline=None)
def test_any_text_survives_the_file(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    problems: list[str] = []
    text = tomlfile.changed(tomlfile.template({"scope.include": first}), {"scope.exclude": second})
    values = resolve([from_toml(text, "t", problems)], problems)
    assert problems == []
    assert (values["scope.include"].value, values["scope.exclude"].value) == (first, second)


EDITED = """\
# mine
[origin]   # how I like it
spacing_ms = 1_000  # a second
[scope]
exclude = [
  "/private",  # not this
  "*?print=",
]
include = ["/docs"]
"""


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        (
            "origin.spacing_ms",
            5,
            ["# mine", "[origin]   # how I like it", 'include = ["/docs"]', '  "/private",  # not this'],
        ),
        ("scope.exclude", ("/x",), ["# mine", "spacing_ms = 1_000  # a second", 'include = ["/docs"]']),
        ("origin.active_max", 2, EDITED.splitlines()),
        ("fetch.total_s", 5.0, EDITED.splitlines()),
    ],
)
def test_changing_one_setting_leaves_the_operators_other_lines_alone(
    name: str, value: SettingValue, kept: list[str]
) -> None:
    text = tomlfile.changed(EDITED, {name: value})
    section, _, key = name.partition(".")
    read = tomllib.loads(text)[section][key]
    assert (tuple(read) if isinstance(read, list) else read) == value
    for line in kept:
        assert line in text.splitlines()


def test_changing_a_commented_default_takes_its_place() -> None:
    text = tomlfile.changed(tomlfile.template({}), {"budget.pages_max": 7})
    assert "\npages_max = 7\n" in text
    assert "# pages_max" not in text
    assert len(text.splitlines()) == len(tomlfile.template({}).splitlines())
