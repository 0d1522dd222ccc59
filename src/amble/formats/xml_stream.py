"""XML as a stream of elements, without a tree, without a DTD: a document type declaration ends the reading.

Entities can only be declared in a DTD, so refusing it refuses every entity bomb and every external reference at once.
"""

from __future__ import annotations

from collections.abc import Callable
from xml.parsers import expat

NOTE_BROKEN = "xml_broken"
NOTE_DOCTYPE = "xml_doctype_refused"
NOTE_DEEP = "xml_too_deep"

# Lists of URLs are three or four levels deep.
DEPTH_MAX = 64
# A URL or a title is read up to here; what follows in the same element is skipped.
TEXT_CHARS_MAX = 16 * 1024
FEED_STEP_BYTES = 64 * 1024

_NAMESPACE_MARK = " "


class Stop(Exception):
    """Raised by a handler that has seen enough."""


class _Refused(Exception):
    """The document declares a type, or is deeper than any list. Its one argument is the note."""


ElementHandler = Callable[[tuple[str, ...], dict[str, str], str], None]


class XmlStream:
    """Calls `on_end(path, attributes, text)` for every element as it ends.

    `path` holds local names from the root down to the element. `text` is the text directly inside it, stripped, and
    only for elements whose local name is in `texts`.
    """

    def __init__(self, on_end: ElementHandler, texts: frozenset[str]) -> None:
        self._on_end = on_end
        self._texts = texts
        self._path: list[str] = []
        self._attributes: list[dict[str, str]] = []
        self._pieces: list[list[str] | None] = []
        self._room = 0

    def read(self, body: bytes) -> list[str]:
        """Read all of `body`; notes on what could not be read. What came before a break has been reported."""
        parser = expat.ParserCreate(namespace_separator=_NAMESPACE_MARK)
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            for start in range(0, len(body), FEED_STEP_BYTES):
                parser.Parse(body[start : start + FEED_STEP_BYTES], False)
            parser.Parse(b"", True)
        except (expat.ExpatError, LookupError, ValueError):
            return [NOTE_BROKEN]
        except _Refused as refusal:
            return [str(refusal)]
        except Stop:
            pass
        return []

    def _refuse(self, *_declaration: object) -> None:
        raise _Refused(NOTE_DOCTYPE)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= DEPTH_MAX:
            raise _Refused(NOTE_DEEP)
        local = name.rpartition(_NAMESPACE_MARK)[2]
        self._path.append(local)
        self._attributes.append(attributes)
        self._pieces.append([] if local in self._texts else None)
        self._room = TEXT_CHARS_MAX

    def _characters(self, text: str) -> None:
        pieces = self._pieces[-1] if self._pieces else None
        if pieces is not None and self._room > 0:
            pieces.append(text[: self._room])
            self._room -= len(text)

    def _end(self, _name: str) -> None:
        path = tuple(self._path)
        pieces = self._pieces.pop()
        attributes = self._attributes.pop()
        self._path.pop()
        self._on_end(path, attributes, "".join(pieces).strip() if pieces else "")
