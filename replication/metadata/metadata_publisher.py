"""The image of the cluster that everybody sees, and those who follow it (seam 11).

RULES    1. An image is followed step by step (`on_image`), so that others have their turns between; when it has been followed,
            it is the published one, and who waited for it is told. One is followed at a time, in their order.
         2. Until `begin` nobody follows; then the present image is followed at once, for nobody else has turns yet.
         3. What is shown is followed and published as well, but the next image grows out of the newest before it.
NOT HERE What becomes of the image (`controller/`, `metadata_loader.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from replication.cooperative_tasks import Soon, at_once, in_turns
from replication.metadata.image import Changes, MetadataImage

Follow = Callable[[MetadataImage, Changes], Iterator[None]]
Done = Callable[[], None]


class _Next(NamedTuple):
    """What is published next; without an image somebody only waits."""

    image: MetadataImage | None
    changes: Changes | None
    done: Done


class Publisher:
    """Publishes one image after the other."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        """The published one."""
        self.newest = image
        """The one that will be when all that waits is published."""
        self.on_image: Follow = _follow_nothing
        """Lets partitions and coordinators follow an image, in steps."""
        self.on_published: Callable[[MetadataImage], None] = _ignore
        """Told of each image when it is published."""
        self.soon: Soon = at_once
        self._waiting: deque[_Next] = deque()
        self._has_begun = False

    def publish(self, image: MetadataImage, changes: Changes, done: Done) -> None:
        """Publish an image that differs by `changes` from the newest; `done` follows."""
        self.newest = image
        self._add(_Next(image, changes, done))

    def show(self, image: MetadataImage, changes: Changes) -> None:
        """Publish an image that nobody goes on from (rule 3); it differs by `changes` from the newest."""
        self._add(_Next(image, changes, _nothing))

    def when_published(self, done: Done) -> None:
        """Tell when all that waits is published."""
        if self._waiting:
            self._add(_Next(None, None, done))
        else:
            done()

    def begin(self) -> None:
        """Rule 2."""
        self._has_begun = True
        for _ in self.on_image(self.image, Changes.everything(self.image)):
            pass

    def _add(self, following: _Next) -> None:
        self._waiting.append(following)
        if len(self._waiting) == 1:
            in_turns(self._publish_all(), self.soon)

    def _publish_all(self) -> Iterator[None]:
        waiting = self._waiting
        while waiting:
            image, changes, done = waiting[0]
            if image is not None and changes is not None:
                if self._has_begun:
                    yield from self.on_image(image, changes)
                self.image = image
                self.on_published(image)
            waiting.popleft()
            done()


def _follow_nothing(_image: MetadataImage, _changes: Changes) -> Iterator[None]:
    return iter(())


def _ignore(_image: MetadataImage) -> None:
    pass


def _nothing() -> None:
    pass
