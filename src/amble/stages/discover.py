"""Discovery: the links of a manifest, after its cursor, to the URL gate in bounded batches; the cursor moves with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from amble.domain.frontier import AdmitReport, Applied, OpenManifest
from amble.domain.manifest import PAGE_NOFOLLOW, CursorAdvance, Link, ManifestKey
from amble.formats import manifest_json
from amble.ports import Archive

BATCH_LINKS = 512


class LinkGate(Protocol):
    """The URL gate as discovery sees it."""

    async def admit_links(
        self,
        links: Sequence[Link],
        *,
        parent: int,
        depth: int,
        hops: int,
        cursor: CursorAdvance | None,
        follow: bool = True,
    ) -> AdmitReport:
        """Judge and admit, with the cursor's move in the same commit."""
        ...


class Discovery(Struct, frozen=True, kw_only=True):
    """Manifest to candidates."""

    gate: LinkGate
    archive: Archive
    batch_links: int = BATCH_LINKS

    async def consume(
        self,
        key: ManifestKey,
        links: Sequence[Link],
        *,
        depth: int,
        hops: int,
        directives: int,
        start: int = 0,
    ) -> bool:
        """Admit the links from `start` to the end. False when another owner has moved the cursor meanwhile."""
        follow = not directives & PAGE_NOFOLLOW
        position = start
        while position < len(links):
            batch = links[position : position + self.batch_links]
            report = await self.gate.admit_links(
                batch,
                parent=key.url_id,
                depth=depth,
                hops=hops,
                cursor=CursorAdvance(key, position, position + len(batch)),
                follow=follow,
            )
            if report.applied == Applied.STALE:
                return False
            position += len(batch)
        return True

    async def resume(self, open_manifest: OpenManifest) -> bool:
        """Go on with a manifest that an earlier life left half consumed, read from the archive."""
        manifest = manifest_json.decode(await self.archive.read(open_manifest.ref)).manifest
        assert len(manifest.links) == open_manifest.total, "a manifest has the links that its row counts"
        return await self.consume(
            open_manifest.manifest,
            manifest.links,
            depth=open_manifest.depth,
            hops=open_manifest.hops,
            directives=manifest.directives,
            start=open_manifest.cursor,
        )
