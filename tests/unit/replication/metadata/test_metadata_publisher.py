"""Guards replication/metadata/metadata_publisher.py: which image everybody sees, and which one the next grows out of."""

from __future__ import annotations

from replication.metadata.image import MetadataDelta, MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher


def test_a_temporary_image_is_published_but_not_built_upon() -> None:
    first = MetadataImage("c")
    publisher = MetadataPublisher(first)
    followed: list[MetadataImage] = []
    publisher.on_image = lambda image, _changes: iter(followed.append(image) for _ in range(1))
    publisher.start()
    shown = first.with_leader(3, offset=0, epoch=0)
    publisher.publish_temporary(shown, MetadataDelta())
    assert publisher.image is shown
    assert publisher.newest is first
    following = publisher.newest.with_leader(2, offset=1, epoch=1)
    publisher.publish(following, MetadataDelta(), lambda: None)
    assert followed == [first, shown, following]
    assert publisher.image is publisher.newest is following
