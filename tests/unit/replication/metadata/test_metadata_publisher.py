"""The rules of `MetadataPublisher`."""

from __future__ import annotations

from collections.abc import Iterator

from replication.completion import Completion
from replication.metadata.image import MetadataDelta, MetadataImage
from replication.metadata.metadata_publisher import MetadataPublisher


def test_a_temporary_image_is_published_but_not_built_upon() -> None:
    first = MetadataImage("c")
    publisher = MetadataPublisher(first)
    applied: list[MetadataImage] = []

    def apply(image: MetadataImage, _: MetadataDelta) -> Iterator[None]:
        applied.append(image)
        yield

    publisher.on_image = apply
    publisher.start()
    temporary = first.with_leader(3, offset=0, epoch=0)
    publisher.publish_temporary(temporary, MetadataDelta())
    assert publisher.image is temporary
    assert publisher.newest is first
    later = publisher.newest.with_leader(2, offset=1, epoch=1)
    publisher.publish(later, MetadataDelta(), Completion())
    assert applied == [first, temporary, later]
    assert publisher.image is publisher.newest is later
