"""Guards replication/metadata/metadata_publisher.py: which image everybody sees, and which one the next grows out of."""

from __future__ import annotations

from replication.metadata.image import Changes, MetadataImage
from replication.metadata.metadata_publisher import Publisher


def test_nobody_goes_on_from_what_is_only_shown() -> None:
    """Rule 3: it is followed and published, and the newest is the one before it."""
    first = MetadataImage("c")
    publisher = Publisher(first)
    followed: list[MetadataImage] = []
    publisher.on_image = lambda image, _changes: iter(followed.append(image) for _ in range(1))
    publisher.begin()
    shown = first.led_by(3, offset=0, epoch=0)
    publisher.show(shown, Changes())
    assert publisher.image is shown
    assert publisher.newest is first
    following = publisher.newest.led_by(2, offset=1, epoch=1)
    publisher.publish(following, Changes(), lambda: None)
    assert followed == [first, shown, following]
    assert publisher.image is publisher.newest is following
