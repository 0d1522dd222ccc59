"""Configuration parsed once: layers of settings in, one frozen tree out, and every mistake reported together.

Later layers win: defaults, the folder's amble.toml, a file given with --config, the environment, the command line.
Nothing here touches a disk (`app/folder.py` does) and nothing after it parses a setting again.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import amble
from amble.app.settings import ELSEWHERE, SECTIONS, SETTINGS, Setting, SettingValue
from amble.domain.decision import Reason
from amble.domain.destination import judge
from amble.domain.errors import ConfigErrors
from amble.domain.policy import NearDuplicates, Policy, PublishPolicy, RobotsPolicy, ScopeKind
from amble.domain.scope import Scope
from amble.domain.url import Canonicalizer, host_of

# A list of seeds is small beside a frontier, but it is read into memory as a whole.
SEEDS_MAX = 1_000_000
# One mistake in a generated list is often a million: enough of them are shown to see the pattern.
PROBLEMS_SHOWN_MAX = 20

_CONTACT_FIX = "give one with --contact https://you.example/bot"


@dataclass(frozen=True, slots=True)
class Given:
    """A value as somebody gave it, unchecked. `text` True: it came as text (environment, command line).

    `accepts` replaces the setting's own words in a message, where an option takes other units than its setting.
    """

    value: object
    source: str
    text: bool = True
    accepts: str = ""


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting, its checked value, and where that came from ("default" or the name of a layer)."""

    setting: Setting
    value: SettingValue
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeChoice:
    """How far from its seeds a crawl may go. `hosts`: further hosts beside those of the seeds."""

    kind: ScopeKind = ScopeKind.HOST
    hosts: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetChoice:
    """What the processes of a fleet are told beyond a crawl. `store_url`, `archive_url`: "" where nothing was given.

    `name`: "" for host name and process number. `parse_elsewhere`: parse workers take what is not needed at once.
    `digests_url`: "" for the databases of `store_url`. `bloom_folder`: "" for no filters.
    """

    store_url: str = ""
    archive_url: str = ""
    name: str = ""
    lease_s: float = 15.0
    parse_elsewhere: bool = False
    digests_url: str = ""
    bloom_folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlConfig:
    """Everything a crawl is told. Frozen; handed down by hand from `app/build.py`.

    `seeds` are canonical URLs. `resolver` is "" (the system's) or ADDRESS:PORT. `allow_nets` are CIDR networks.
    `tls_ca_file` is "" (the bundled public roots) or a PEM file.
    """

    seeds: tuple[str, ...] = ()
    scope: ScopeChoice = field(default_factory=ScopeChoice)
    contact: str = ""
    user_agent: str = f"amble/{amble.__version__}"
    allow_nets: tuple[str, ...] = ()
    resolver: str = ""
    concurrency: int = 256
    parser_children: int = 1
    tls_verify: bool = True
    tls_ca_file: str = ""
    segment_bytes: int = 1024 * 1024 * 1024
    store_files: int = 1
    wait_max_s: float = 600.0
    policy: Policy = field(default_factory=Policy)
    fleet: FleetChoice = field(default_factory=FleetChoice)

    @classmethod
    def parse(
        cls,
        toml_text: str = "",
        *,
        env: Mapping[str, str] | None = None,
        given: Mapping[str, Given] | None = None,
        seeds: Sequence[str] = (),
        source: str = "amble.toml",
    ) -> CrawlConfig:
        """The configuration of a TOML text under an environment and values of a command line.

        Raises ConfigErrors listing every mistake.
        """
        problems: list[str] = []
        layers = [from_toml(toml_text, source, problems), from_env(env or {}, problems), given or {}]
        config = configure(resolve(layers, problems), seeds, problems)
        complain(problems)
        return config


def scope_of(config: CrawlConfig) -> Scope:
    """The judge of how far a crawl may go."""
    scope = config.scope
    return Scope(scope.kind, config.seeds, include=scope.include, exclude=scope.exclude, hosts=scope.hosts)


def complain(problems: Sequence[str]) -> None:
    """Raise ConfigErrors when there are any, the first ones in full and the rest as a count."""
    if not problems:
        return
    shown = list(dict.fromkeys(problems))
    if len(shown) > PROBLEMS_SHOWN_MAX:
        rest = len(shown) - PROBLEMS_SHOWN_MAX
        shown = [*shown[:PROBLEMS_SHOWN_MAX], f"and {rest} more of this kind"]
    raise ConfigErrors(shown)


# --- layers ------------------------------------------------------------------------------------------------------


def from_toml(text: str, source: str, problems: list[str]) -> dict[str, Given]:
    """The settings of a TOML text."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        problems.append(
            f"{source}: not valid TOML: {exc}; mend that line, or delete the file to start from defaults"
        )
        return {}
    layer: dict[str, Given] = {}
    for section, table in document.items():
        if section not in SECTIONS or not isinstance(table, dict):
            problems.append(f"{source}: [{section}] is no section; there are {', '.join(SECTIONS)}")
            continue
        for key, value in table.items():
            _keep(layer, f"{section}.{key}", Given(value, source, text=False), problems)
    return layer


def from_env(env: Mapping[str, str], problems: list[str]) -> dict[str, Given]:
    """The settings of AMBLE_SECTION_KEY variables. Variables of other shapes are none of ours."""
    layer: dict[str, Given] = {}
    for variable, text in sorted(env.items()):
        section, _, key = variable.removeprefix("AMBLE_").lower().partition("_")
        if variable.startswith("AMBLE_") and section in SECTIONS and key:
            _keep(layer, f"{section}.{key}", Given(text, variable), problems)
    return layer


def from_assignments(texts: Iterable[str], source: str, problems: list[str]) -> dict[str, Given]:
    """The settings of `section.key=value` texts."""
    layer: dict[str, Given] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals:
            _keep(layer, name.strip(), Given(value.strip(), source), problems)
        else:
            problems.append(f"{source} {text!r}: write section.key=value, such as fetch.total_s=30")
    return layer


def _keep(layer: dict[str, Given], name: str, given: Given, problems: list[str]) -> None:
    if name in SETTINGS:
        layer[name] = given
        return
    # A right section says nothing of the key: `fetch.foo` is not close to `fetch.total_s`.
    section, _, key = name.partition(".")
    keys = [known.partition(".")[2] for known in SETTINGS if known.startswith(f"{section}.")]
    if keys:
        close = [f"{section}.{found}" for found in difflib.get_close_matches(key, keys, n=1, cutoff=0.6)]
    else:
        close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else "`amble config show` lists all of them"
    problems.append(f"{name}: no such setting ({given.source}); {hint}")


# --- values ------------------------------------------------------------------------------------------------------


def resolve(layers: Sequence[Mapping[str, Given]], problems: list[str]) -> dict[str, Effective]:
    """Every setting with its value and source; a refused value is reported and leaves the default standing."""
    values = {name: Effective(setting, setting.default, "default") for name, setting in SETTINGS.items()}
    for layer in layers:
        for name, given in layer.items():
            checked = check(SETTINGS[name], given)
            if isinstance(checked, _Refused):
                problems.append(checked.problem)
            else:
                values[name] = Effective(SETTINGS[name], checked.value, given.source)
    return values


@dataclass(frozen=True, slots=True)
class _Checked:
    value: SettingValue


@dataclass(frozen=True, slots=True)
class _Refused:
    problem: str


def check(setting: Setting, given: Given) -> _Checked | _Refused:
    """One value against what its setting accepts."""
    try:
        raw = _items(str(given.value)) if given.text and setting.kind.many else given.value
        return _Checked(setting.kind.check(raw, given.text))
    except (ValueError, OverflowError):
        return _Refused(_refusal(setting, given))


def _refusal(setting: Setting, given: Given) -> str:
    """One line in the words of whoever gave the value: an option, or a setting and where it stands."""
    accepts = given.accepts or setting.kind.accepts
    if given.source.startswith("--") and given.source != "--set":
        return f"{given.source} {_quoted(given.value)} is not accepted: give {accepts}"
    return f"{setting.name} = {_quoted(given.value)} ({given.source}) is not accepted: give {accepts}"


def _items(text: str) -> object:
    """A list as text: TOML's own form, or items between commas."""
    if text.lstrip().startswith("["):
        return tomllib.loads(f"items = {text}")["items"]
    return [item.strip() for item in text.split(",") if item.strip()]


def _quoted(value: object) -> str:
    """A value for a message: one line, not too long, strings in quotes."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 80 else text[:77] + "..."


# --- the tree ----------------------------------------------------------------------------------------------------


def configure(values: Mapping[str, Effective], seeds: Sequence[str], problems: list[str]) -> CrawlConfig:
    """The frozen tree, with the checks that need more than one value. Mistakes are added to `problems`."""

    def value(name: str) -> Any:
        return values[name].value

    policy = _policy(values, _agent(value("crawl.user_agent"), value("crawl.contact")))
    config = CrawlConfig(
        seeds=_seeds(seeds, problems),
        scope=ScopeChoice(
            kind=ScopeKind(value("scope.kind")),
            hosts=_hosts(value("scope.hosts"), problems),
            include=value("scope.include"),
            exclude=value("scope.exclude"),
        ),
        contact=value("crawl.contact"),
        user_agent=_agent(value("crawl.user_agent"), value("crawl.contact")),
        allow_nets=value("network.allow_nets"),
        resolver=value("network.resolver"),
        concurrency=value("crawl.concurrency"),
        parser_children=value("parse.children") or _spare_cores(),
        tls_verify=value("tls.verify"),
        tls_ca_file=value("tls.ca_file"),
        segment_bytes=value("archive.segment_bytes"),
        store_files=value("store.files"),
        wait_max_s=value("finish.wait_max_s"),
        policy=policy,
        fleet=FleetChoice(
            store_url=value("store.url"),
            digests_url=value("store.digests_url"),
            bloom_folder=value("agent.bloom_folder"),
            archive_url=value("archive.url"),
            name=value("agent.name"),
            lease_s=value("agent.lease_s"),
            parse_elsewhere=value("parse.where") == ELSEWHERE,
        ),
    )
    problems.extend(_relations(values))
    # A contact that was given and refused is not missing as well.
    if not any(problem.startswith(("--contact ", "crawl.contact ")) for problem in problems):
        problems.extend(contact_missing(config))
    problems.extend(_all_refused(config))
    return config


def _policy(values: Mapping[str, Effective], user_agent: str) -> Policy:
    """domain/policy.Policy with every field that is a setting filled from its value."""
    sections: dict[str, Any] = {}
    for part in fields(Policy):
        default = getattr(Policy(), part.name)
        if part.name not in SECTIONS:
            continue
        own = {item.name: values[f"{part.name}.{item.name}"].value for item in fields(default)}
        sections[part.name] = type(default)(**own)
    robots: RobotsPolicy = sections["robots"]
    if not robots.agent_tokens:
        sections["robots"] = replace(robots, agent_tokens=agent_tokens(user_agent))
    near = NearDuplicates(str(values["publish.near_duplicates"].value))
    sections["publish"] = PublishPolicy(near_duplicates=near)
    return Policy(**sections)


def _agent(user_agent: str, contact: str) -> str:
    """The User-Agent header: the operator's own text, or ours with the contact in it (RFC 9110 10.1.5)."""
    if user_agent:
        return user_agent
    return f"amble/{amble.__version__} (+{contact})" if contact else f"amble/{amble.__version__}"


def agent_tokens(user_agent: str) -> tuple[str, ...]:
    """Product tokens by which robots.txt may address us (RFC 9309 2.2.1), from a User-Agent text.

    `Mozilla/5.0 (compatible; MyBot/1.0; …)` names MyBot; every other text names its first product.
    """
    named = re.search(r"\(compatible;\s*([A-Za-z_-]+)", user_agent) or re.match(r"[A-Za-z_-]+", user_agent)
    if named is None:
        return ("amble",)
    return ((named[1] if named.re.groups else named[0]).lower(),)


def _spare_cores() -> int:
    """One parser child per core that the agent leaves free, at least one."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _relations(values: Mapping[str, Effective]) -> list[str]:
    """Pairs of settings of which the first may not exceed the second."""
    pairs = (
        ("robots.fresh_ms_min", "robots.fresh_ms_max"),
        ("retry.base_ms", "retry.cap_ms"),
        ("origin.backoff_base_ms", "origin.backoff_cap_ms"),
        ("urls.urls_per_origin_start", "urls.urls_per_origin_max"),
        ("crawl.concurrency", "fetch.connections_max"),
        ("fetch.connect_s", "fetch.total_s"),
        ("fetch.first_byte_s", "fetch.total_s"),
        ("parse.cpu_s", "parse.wall_s"),
        ("fetch.body_bytes_max", "archive.segment_bytes"),
    )
    problems = []
    for low, high in pairs:
        low_value, high_value = values[low].value, values[high].value
        assert isinstance(low_value, int | float)
        assert isinstance(high_value, int | float)
        if low_value > high_value:
            problems.append(
                f"{low} = {low_value} ({values[low].source}) is more than {high} = {high_value} "
                f"({values[high].source}): lower the first or raise the second"
            )
    if values["crawl.user_agent"].value and not re.match(
        r"[A-Za-z_-]", str(values["crawl.user_agent"].value)
    ):
        problems.append(
            f"crawl.user_agent = {_quoted(values['crawl.user_agent'].value)} ({values['crawl.user_agent'].source}) "
            "starts with no product token: begin with a name, such as mybot/1.0"
        )
    return problems


# --- seeds and hosts ---------------------------------------------------------------------------------------------

_CANONICALIZER = Canonicalizer()
_SEED_FIXES = {
    Reason.SCHEME_UNSUPPORTED: "amble fetches http and https only",
    Reason.HAS_USERINFO: "it carries a user name or password, and amble sends none; leave that part out",
    Reason.URL_TOO_LONG: "it is too long",
    Reason.NOT_A_URL: "it is not a URL",
}


def canonical_seed(text: str) -> str | Reason:
    """The canonical form of a seed as typed, or why it has none."""
    return _CANONICALIZER.canon(text.strip(), None)


def seed_problem(text: str, reason: Reason) -> str:
    """One line: the seed, what is wrong with it, and how it may have been meant."""
    # A password in a seed must not reach a terminal's scrollback or a log.
    shown = re.sub(r"//[^/@\s]*@", "//...@", text)
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    fix = _SEED_FIXES.get(reason, reason.value)
    if "://" not in text and "@" not in text and not text.startswith(("/", ".", "-", "mailto:", "data:")):
        scheme = "http" if re.match(r"(localhost|127\.|\[)", text) else "https"
        meant = canonical_seed(f"{scheme}://{text}")
        if not isinstance(meant, Reason):
            return f"seed {shown!r}: it has no scheme; did you mean {meant}"
    return f"seed {shown!r}: {fix}"


def _seeds(texts: Sequence[str], problems: list[str]) -> tuple[str, ...]:
    """Canonical, in order, each once."""
    seeds: dict[str, None] = {}
    for text in texts:
        canonical = canonical_seed(text)
        if isinstance(canonical, Reason):
            problems.append(seed_problem(text, canonical))
        else:
            seeds[canonical] = None
    if len(seeds) > SEEDS_MAX:
        problems.append(
            f"{len(seeds)} seeds are more than the {SEEDS_MAX} that one crawl takes: split the list"
        )
    return tuple(seeds)


def _hosts(names: Sequence[str], problems: list[str]) -> tuple[str, ...]:
    """Bare host names in canonical spelling; "*." in front stands for every host below."""
    hosts = []
    for name in names:
        star, bare = ("*.", name[2:]) if name.startswith("*.") else ("", name)
        canonical = canonical_seed(f"http://{bare}/") if not set("/:?#@* ") & set(bare) else Reason.NOT_A_URL
        if isinstance(canonical, Reason):
            problems.append(
                f"scope.hosts: {name!r} is no host name; give a bare name such as www.example.org"
            )
        else:
            hosts.append(star + host_of(canonical))
    return tuple(hosts)


def contact_missing(config: CrawlConfig) -> list[str]:
    """The mistake of crawling the public web without saying who one is."""
    if config.contact or re.search(r"https?://|@", config.user_agent):
        return []
    public = next((seed for seed in config.seeds if not _is_private(host_of(seed), config.allow_nets)), None)
    if public is not None:
        return [
            f"crawl.contact: {host_of(public)} is a public site and must be able to reach you; {_CONTACT_FIX}"
        ]
    if config.seeds and config.scope.kind is ScopeKind.ANY:
        return [
            f"crawl.contact: scope any leads to public sites, which must be able to reach you; {_CONTACT_FIX}"
        ]
    return []


def _all_refused(config: CrawlConfig) -> list[str]:
    """The mistake of seeds that are all addresses which the egress gate will refuse: nothing could be fetched."""
    nets = [ipaddress.ip_network(net) for net in config.allow_nets]
    refused = [judge(host_of(seed), nets).refused for seed in config.seeds if _is_address(host_of(seed))]
    if not refused or len(refused) < len(config.seeds) or not all(refused):
        return []
    host = ipaddress.ip_address(host_of(config.seeds[0]))
    net = "127.0.0.0/8" if host.version == 4 and host.is_loopback else str(ipaddress.ip_network(host))
    return [
        f"seed {config.seeds[0]}: {refused[0]}, which amble refuses; if it is yours, add --allow-net {net}"
    ]


def _is_address(host: str) -> bool:
    return ":" in host or host.rpartition(".")[2].isdigit()


def _is_private(host: str, allow_nets: Sequence[str]) -> bool:
    """Whether a host is the operator's own: loopback, in an allowed network, or a name no public site has."""
    # RFC 6761 6.2 and 6.3: test and localhost are never names of public sites.
    if host.rpartition(".")[2] in ("test", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or any(address in ipaddress.ip_network(net) for net in allow_nets)
