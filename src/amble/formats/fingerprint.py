"""Near-duplicate fingerprint of a text: a 64-bit simhash over its shingles of three words.

Deterministic across processes and machines: words are hashed by xxh3, shingles mixed with fixed constants, both written
down here. Long texts are sampled by shingle hash, so that equal passages choose equal shingles wherever they stand.
Two texts are near-duplicates when their fingerprints differ in few bits (`distance`, at most 3 of 64 is usual).
"""

from __future__ import annotations

import re

import numpy as np
import xxhash

# Shorter texts say too little to be compared; their fingerprint is 0.
WORDS_MIN = 30
# A prefix this long identifies a document; the rest of a huge one is not looked at.
CHARS_MAX = 512 * 1024
# About this many shingles are counted; more would not change the answer, only the time.
SHINGLES_WANTED = 384
# Words whose hash is remembered between pages. Natural language repeats itself; an adversary only empties the cache.
WORDS_REMEMBERED_MAX = 200_000
# Longer "words" are data, not language: they are hashed but not remembered.
WORD_CHARS_REMEMBERED_MAX = 32

_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX_ONE = np.uint64(0xBF58476D1CE4E5B9)
_MIX_TWO = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)

# Scripts written without spaces between words: one token per character. Thai, Lao, Burmese, Khmer; kana, Han.
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])"
)


class _WordHashes(dict[str, int]):
    """Word to 64-bit hash, filled as words are met."""

    def __missing__(self, word: str) -> int:
        value = xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))
        if len(word) <= WORD_CHARS_REMEMBERED_MAX:
            self[word] = value
        return value


class Fingerprinter:
    """Makes fingerprints; remembers word hashes between texts, which changes the speed and never the result."""

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes = _WordHashes()

    def of(self, text: str, utf8_bytes: int) -> int:
        """The fingerprint of `text`, 0 if it has under `WORDS_MIN` words. `utf8_bytes`: its length in UTF-8."""
        words = _words(text[:CHARS_MAX], utf8_bytes)
        if len(words) < WORDS_MIN:
            return 0
        hashes = self._hashes
        if len(hashes) > WORDS_REMEMBERED_MAX:
            hashes.clear()
        codes = np.fromiter(map(hashes.__getitem__, words), np.uint64, len(words))
        # A line that repeats down the page counts once: else one button's label would outvote the article.
        return _simhash(np.unique(_sampled(_shingles(codes))))


def _words(text: str, utf8_bytes: int) -> list[str]:
    # Only a text with many three-byte characters can be in an unspaced script; looking costs more than this guess.
    if utf8_bytes > len(text) + len(text) // 2:
        text = _UNSPACED.sub(r" \1 ", text)
    return text.lower().split()


def _shingles(
    codes: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """One 64-bit hash per run of three words, in order; arithmetic is modulo 2**64."""
    mixed = codes[:-2] * _FIRST + codes[1:-1] * _SECOND + codes[2:]
    mixed ^= mixed >> _SHIFT_30
    mixed *= _MIX_ONE
    mixed ^= mixed >> _SHIFT_27
    mixed *= _MIX_TWO
    mixed ^= mixed >> _SHIFT_31
    return mixed


def _sampled(
    shingles: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The shingles whose product hash is smallest: a share of 1, 1/2, 1/4, … that keeps about SHINGLES_WANTED.

    The share depends on the length in powers of two, so near-duplicates are nearly always sampled alike.
    """
    share = 1
    while len(shingles) > 2 * SHINGLES_WANTED * share:
        share *= 2
    if share == 1:
        return shingles
    kept = shingles[(shingles * _FIRST) >> np.uint64(64 - share.bit_length() + 1) == 0]
    return kept if len(kept) >= WORDS_MIN else shingles


def _simhash(shingles: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> int:
    """Bit i is set where more than half of the shingles have it set."""
    bits = np.unpackbits(shingles.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    set_counts = bits.sum(axis=0, dtype=np.uint32)
    majority = set_counts * 2 > len(shingles)
    return int.from_bytes(np.packbits(majority, bitorder="little").tobytes(), "little")
