"""The definition of the near-duplicate fingerprint, in numpy: a 64-bit simhash over shingles of three words.

Everything is defined over bytes of UTF-8, so that no table of characters, which changes with the interpreter, has a say:

- a word is a run of ASCII letters, ASCII digits and bytes above 0x7F; ASCII letters count as lower case. A character of
  a script that is written without spaces (Thai, Lao, Burmese, Khmer, kana, Han) is a word of its own;
- the hash of a word is the sum of its bytes times powers of MULTIPLIER, the first byte times 1. A prefix sum over
  the whole text gives the hashes of all words at once;
- a shingle mixes the hashes of three words in a row. Long texts are sampled by shingle, so that equal passages choose
  equal shingles wherever they stand. A line that repeats counts once: else one button's label would outvote an article;
- a bit of the fingerprint is set where more than half of the shingles have it set.

All arithmetic is modulo 2**64. `amble/_native.c` computes the same numbers; a change here is a change there.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

# Shorter texts say too little to be compared; their fingerprint is 0.
WORDS_MIN = 30
# A prefix this long identifies a document; the rest of a huge one is not looked at.
BYTES_MAX = 256 * 1024
# About this many shingles are counted; more would not change the answer, only the time.
SHINGLES_WANTED = 384
MULTIPLIER = 0xD1342543DE82EF95

_Words = np.ndarray[tuple[int], np.dtype[np.uint64]]

_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX_ONE = np.uint64(0xBF58476D1CE4E5B9)
_MIX_TWO = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)

# Bytes of words as they are hashed; 0 for all that separates words.
_FOLDED = bytes(byte if byte > 0x7F or chr(byte).isalnum() else 0 for byte in bytes(range(256)).lower())
# U+0E00-0EFF, U+1000-109F, U+1780-17FF, U+3040-30FF, U+3400-9FFF, U+F900-FAFF.
_UNSPACED = re.compile(
    rb"(\xe0[\xb8-\xbb][\x80-\xbf]|\xe1[\x80\x81\x9e\x9f][\x80-\xbf]|\xe1\x82[\x80-\x9f]"
    rb"|\xe3[\x81-\x83\x90-\xbf][\x80-\xbf]|[\xe4-\xe9][\x80-\xbf]{2}|\xef[\xa4-\xab][\x80-\xbf])"
)
_UNSPACED_LEADS = b"\xe0\xe1\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xef"


def fingerprint(utf8: bytes) -> int:
    """The fingerprint of a text in UTF-8, 0 if it has under `WORDS_MIN` words. Any bytes have one."""
    words = _word_hashes(utf8[:BYTES_MAX])
    if len(words) < WORDS_MIN:
        return 0
    return _majority(_distinct(_sampled(_shingles(words))))


@lru_cache(maxsize=1)
def _powers(count: int) -> tuple[_Words, _Words]:
    """Powers 0 to `count` - 1 of MULTIPLIER and of its inverse."""
    inverse = pow(MULTIPLIER, -1, 1 << 64)
    up, down = (np.full(count, factor, np.uint64) for factor in (MULTIPLIER, inverse))
    up[0] = down[0] = 1
    return np.multiply.accumulate(up), np.multiply.accumulate(down)


def _word_hashes(utf8: bytes) -> _Words:
    if not utf8.isascii() and len(utf8.translate(None, _UNSPACED_LEADS)) < len(utf8):
        utf8 = _UNSPACED.sub(rb" \1 ", utf8)
    # A separator at both ends: every word has a byte before it and one behind it.
    folded = np.frombuffer(b"\0" + utf8.translate(_FOLDED) + b"\0", np.uint8)
    # Powers of two, so that texts of like length share their tables; a spaced-out text has at most 5/3 of its bytes.
    up, down = _powers(max(16 * 1024, 1 << (len(folded) - 1).bit_length()))
    sums = np.cumsum(folded * up[: len(folded)], dtype=np.uint64)
    inside = folded != 0
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    starts = edges[0::2]
    at_edges = sums[edges]
    # The first byte of a word stands one behind its edge.
    hashes: _Words = (at_edges[1::2] - at_edges[0::2]) * down[starts + 1]
    return hashes


def _shingles(words: _Words) -> _Words:
    """One hash per run of three words, in order."""
    mixed = words[:-2] * _FIRST
    mixed += words[1:-1] * _SECOND
    mixed += words[2:]
    mixed ^= mixed >> _SHIFT_30
    mixed *= _MIX_ONE
    mixed ^= mixed >> _SHIFT_27
    mixed *= _MIX_TWO
    mixed ^= mixed >> _SHIFT_31
    return mixed


def _sampled(shingles: _Words) -> _Words:
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


def _distinct(shingles: _Words) -> _Words:
    # Three times as fast as numpy.unique, which has more to offer.
    ordered = np.sort(shingles)
    distinct: _Words = ordered[np.append(ordered[1:] != ordered[:-1], True)]
    return distinct


def _majority(shingles: _Words) -> int:
    bits = np.unpackbits(shingles.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    set_counts = bits.sum(axis=0, dtype=np.uint32)
    majority = set_counts * 2 > len(shingles)
    return int.from_bytes(np.packbits(majority, bitorder="little").tobytes(), "little")
