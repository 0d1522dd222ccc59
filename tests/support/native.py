"""The C module built from its source, and a fuzzer that holds each of its functions to its twin in Python.

Run: `python -m tests.support.native MODULE SECONDS`, where MODULE is a built shared object.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from amble.domain.decision import Reason
from amble.domain.url import Base, Canonicalizer, base_of
from amble.formats import simhash, space
from tests.support.pages import check_page, random_page

SOURCE = Path(__file__).parents[2] / "src" / "amble" / "_native.c"
BASES = (
    "http://example.org/",
    "https://www.example.org/a/b/page.html?q=/x#/y",
    "https://example.org:8443/dir/",
    "http://example.org./dir/page",
    "http://[::1]/a/",
    "http://127.0.0.1/a/b",
    "http://xn--bcher-kva.example/%7euser/x",
    "https://example.org/%C3%BC/a%2Fb/;p=1/x",
    "https://example.org//a//b/..//",
)

_CANONICALIZER = Canonicalizer()
_HREF_PIECES = (
    "http", "https", "HTTP", "ftp", "javascript", "mailto", ":", "//", "/", "/", "/", "\\", ".", "..", "./", "../", "?", "#",
    "&", "=", ";", "@", "%", "%2e", "%2E", "%2F", "%7e", "%41", "%c3%bc", "%zz", "%4", " ", "\t", "\n", "\0", "\x1f", "\x7f",
    "a", "B", "index.html", "example.org", "EXAMPLE.org", "xn--", "xn--bcher-kva", "0x7f", "127.0.0.1", "1", "[::1]", ":80",
    ":443", ":8080", "user:pass@", "utm_source=x", "fbclid", "id=3", "'", '"', "<", ">", "`", "{", "}", "|", "^", "~", "_", "-",
    "!", "$", "(", ")", "*", "+", ",", "[", "]", "ü", "日", "😀", "\xa0", "\xad", "\u200b", "\u2025", "\uff0e", "\ufeff", "\ud800", "ﬀ",
)  # fmt: skip
_TEXT_PIECES = (
    "a", "B", "z", "9", "word", " ", " ", " ", "\n", ".", "-", "é", "ß", "日", "本", "か", "ก", "က", "Ⴀ", "ក", "豈", "㐀",
    "😀", "\u1680", "\u2003", "\u200b", "\u2028", "\u3000", "\x85", "\xa0", "\x1c", "\0", "\x7f",
)  # fmt: skip


def build(folder: Path, *flags: str) -> ModuleType | None:
    """The module compiled without a warning into `folder` and loaded; None where there is no compiler for it."""
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    headers = sysconfig.get_paths()["include"]
    if compiler is None or not (Path(headers) / "Python.h").exists():
        return None
    target = folder / "_native.abi3.so"
    warnings = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
    command = [compiler, "-O2", "-std=c11", "-fPIC", "-shared", *warnings, *flags, f"-I{headers}"]
    subprocess.run([*command, str(SOURCE), "-o", str(target)], check=True, timeout=100)
    return load(target)


def load(path: Path) -> ModuleType:
    """A built module, whatever is installed."""
    spec = importlib.util.spec_from_file_location("amble._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known_base(url: str) -> Base:
    """The base at a URL that is one."""
    found = base_of(url)
    assert not isinstance(found, Reason), url
    return found


def check_hrefs(native: ModuleType, hrefs: list[str], base: Base) -> int:
    """Every answer of `resolve_plain` is what `canon` says, but for the query policy; returns how many it gave."""
    answers = 0
    for href, url in zip(hrefs, native.resolve_plain(hrefs, base.directory), strict=True):
        if url is not None and base.is_plain:
            expected = _CANONICALIZER.canon(href, base)
            assert _CANONICALIZER._by_policy(url) == expected, (href, base, url, expected)
            answers += 1
    return answers


def random_href(chance: random.Random) -> str:
    """Anything an author of pages could write, and some that none would."""
    if chance.random() < 0.1:
        return "".join(chr(chance.randrange(0x250)) for _ in range(chance.randrange(40)))
    text = "".join(chance.choices(_HREF_PIECES, k=chance.randrange(12)))
    begin = ("", "", "/", "//", "http://example.org", "https://a.b/", "../", "x/")[chance.randrange(8)]
    return begin + text * (1 if chance.random() < 0.99 else chance.randrange(2000))


def random_text(chance: random.Random) -> str:
    """Words and no words of many scripts."""
    if chance.random() < 0.3:
        return " ".join(
            str(chance.randrange(10 ** chance.randrange(1, 5))) for _ in range(chance.randrange(4000))
        )
    return "".join(chance.choices(_TEXT_PIECES, k=chance.randrange(2000)))


def _fuzz_hrefs(native: ModuleType, chance: random.Random) -> None:
    base = known_base(chance.choice(BASES))
    check_hrefs(native, [random_href(chance) for _ in range(50)], base)
    native.resolve_plain([random_href(chance)], random_href(chance).encode("utf-8", "ignore").decode())


def _fuzz_fingerprint(native: ModuleType, chance: random.Random) -> None:
    utf8 = random_text(chance).encode() if chance.random() < 0.6 else chance.randbytes(chance.randrange(3000))
    if chance.random() < 0.02:
        utf8 *= 300
    assert native.fingerprint(utf8) == simhash.fingerprint(utf8), utf8


def _fuzz_collapse(native: ModuleType, chance: random.Random) -> None:
    text = random_text(chance)[: chance.randrange(400)] + chance.choice(("", "", "", "\ud800 x", " "))
    bound = chance.randrange(450)
    assert native.collapse(text, bound) == space.collapse(text, bound), (text, bound)


def _fuzz_page(native: ModuleType, chance: random.Random) -> None:
    page = random_page(chance)
    check_page(native, page)
    damaged = bytearray(page)
    for _ in range(chance.randrange(1, 4)):
        damaged[chance.randrange(len(damaged))] = chance.choice(b"<>/=\"'& \n!-a\x00\xc3\r")
    check_page(native, bytes(damaged))


_FUZZERS: tuple[Callable[[ModuleType, random.Random], None], ...] = (
    _fuzz_hrefs,
    _fuzz_fingerprint,
    _fuzz_collapse,
    _fuzz_page,
)


def fuzz(native: ModuleType, seconds: float, seed: int) -> int:
    """Hold all functions to their twins for some seconds; returns how many rounds that were."""
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end:
        for one in _FUZZERS:
            one(native, chance)
        rounds += 1
    return rounds


if __name__ == "__main__":
    print(fuzz(load(Path(sys.argv[1])), float(sys.argv[2]), time.time_ns()), "rounds without a difference")
