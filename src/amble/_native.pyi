"""The loops over a page that cost most, in C. Optional: each has a twin in Python that defines it."""

def fingerprint(utf8: bytes, /) -> int:
    """The near-duplicate fingerprint of a text in UTF-8; defined by `amble.formats.simhash.fingerprint`."""

def first_near(pairs: bytes, fingerprint: int, bits_max: int, /) -> int | None:
    """The number beside the first fingerprint that is near; defined by `amble.domain.digest.first_near`."""

def resolve_plain(hrefs: list[str], directory: str, /) -> list[str | None]:
    """Hrefs resolved against `directory`, fragments cut, escapes in normal form; None for each that is not plain."""

def collapse(text: str, chars_max: int, /) -> str:
    """`text` with single spaces, at most `chars_max` characters; defined by `amble.formats.space.collapse`."""

def read_plain(
    utf8: bytes, with_images: bool, /
) -> (
    tuple[list[tuple[str, str | None, str | None, str | None, str]], str | None, bytes, int, bytes, int]
    | None
):
    """What `amble.formats.html` asks of a tree: walked elements in document order as (name, up to three attributes,
    text), language of the root, visible text and its characters, main text and its characters.

    None where only the full parser can tell; it defines the answer where there is one.
    """
