"""The near-duplicate fingerprint of a text, by whichever of its two twins this installation has.

Two texts are near-duplicates when their fingerprints differ in few bits (`domain.digest`). The value is the same
everywhere: `formats.simhash` defines it, and the optional C module computes it sooner and without numpy.
"""

from __future__ import annotations

try:
    from amble._native import fingerprint
except ImportError:
    from amble.formats.simhash import fingerprint

__all__ = ["fingerprint"]
