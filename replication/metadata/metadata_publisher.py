"""Publishes metadata images to this node's components, one after the other.

RULES    1. An image is applied step by step (`on_image`), so that other work runs between the steps. When it is applied, it is
            the published image and its completion has its result. Images are applied one at a time, in their order.
         2. Before `start` nothing is applied. `start` applies the present image in one go, because no other work runs yet.
         3. A temporary image is applied and published too, but the next image is built from the newest regular one.
NOT HERE How images are built (`controller/`, `metadata_loader.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from replication.completion import Completion
from replication.cooperative_tasks import CallSoon, no_op, run_in_slices, run_inline
from replication.metadata.image import MetadataDelta, MetadataImage

ApplyImage = Callable[[MetadataImage, MetadataDelta], Iterator[None]]


class _PendingImage(NamedTuple):
    """An image to publish; without an image, only the completion."""

    image: MetadataImage | None
    changes: MetadataDelta | None
    published: Completion[None]


class MetadataPublisher:
    """Publishes images in their order."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        """The published image."""
        self.newest = image
        """The image that is published when all pending ones are."""
        self.on_image: ApplyImage = lambda _image, _changes: iter(())
        """Applies an image to partitions and coordinators, in steps."""
        self.on_published: Callable[[MetadataImage], None] = no_op
        """Receives each published image."""
        self.call_soon: CallSoon = run_inline
        self._pending: deque[_PendingImage] = deque()
        self._has_started = False

    def publish(self, image: MetadataImage, changes: MetadataDelta, published: Completion[None]) -> None:
        """Publish an image that differs by `changes` from the newest, then complete `published`."""
        self.newest = image
        self._enqueue(_PendingImage(image, changes, published))

    def publish_temporary(self, image: MetadataImage, changes: MetadataDelta) -> None:
        """Publish an image that no later image is built from (rule 3); it differs by `changes` from the newest."""
        self._enqueue(_PendingImage(image, changes, Completion()))

    def after_pending(self, published: Completion[None]) -> None:
        """Complete `published` when all pending images are published."""
        if self._pending:
            self._enqueue(_PendingImage(None, None, published))
        else:
            published.complete(None)

    def start(self) -> None:
        """Start applying images (rule 2)."""
        self._has_started = True
        for _ in self.on_image(self.image, MetadataDelta.from_empty(self.image)):
            pass

    def _enqueue(self, pending: _PendingImage) -> None:
        self._pending.append(pending)
        if len(self._pending) == 1:
            run_in_slices(self._publish_all(), self.call_soon)

    def _publish_all(self) -> Iterator[None]:
        waiting = self._pending
        while waiting:
            image, changes, published = waiting[0]
            if image is not None and changes is not None:
                if self._has_started:
                    yield from self.on_image(image, changes)
                self.image = image
                self.on_published(image)
            waiting.popleft()
            published.complete(None)
