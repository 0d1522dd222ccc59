"""Which encoding the bytes of a text are in, and its name: the WHATWG labels, and the label of a Content-Type."""

from __future__ import annotations

import codecs

from turbohtml.detect import detect

# What a decoder answers when the bytes are in an encoding that browsers refuse to read (Encoding Standard 14.1).
REPLACEMENT = "replacement"

# Names the codecs that domain/url may ask for when it encodes a query; a sandboxed child loads them before it is
# confined, for afterwards it can open no file.
QUERY_CODECS = (
    "big5hkscs", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp866",
    "cp874", "cp932", "cp949", "euc_jp", "gb18030", "iso-2022-jp", "iso-8859-2", "iso-8859-3", "iso-8859-4",
    "iso-8859-5", "iso-8859-6", "iso-8859-7", "iso-8859-8", "iso-8859-10", "iso-8859-13", "iso-8859-14",
    "iso-8859-15", "iso-8859-16", "koi8-r", "koi8-u", "mac_cyrillic", "mac_roman",
    "utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "ascii",
)  # fmt: skip

_BOMS = ((codecs.BOM_UTF8, "UTF-8"), (codecs.BOM_UTF16_LE, "UTF-16LE"), (codecs.BOM_UTF16_BE, "UTF-16BE"))


def decode_text(body: bytes, label: str | None) -> tuple[str, str]:
    """Text and WHATWG encoding name of a body without markup: BOM, then the HTTP label, then UTF-8, then a guess.

    Malformed sequences become U+FFFD.
    """
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace"), name
    if label is not None:
        try:
            return body.decode("whatwg-" + label.strip().lower(), "replace"), label.strip().lower()
        except (LookupError, ValueError):
            pass  # a label nobody knows is no label, nor is one with a NUL in it
    try:
        return body.decode("utf-8"), "UTF-8"
    except UnicodeDecodeError:
        pass
    match = detect(body)
    if match.codec is None or match.encoding is None:
        return body.decode("utf-8", "replace"), "UTF-8"
    return body.decode(match.codec, "replace"), match.encoding
