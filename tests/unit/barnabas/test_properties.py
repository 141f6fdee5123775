"""Java's properties as the installed commands read them: the broker's reader gets the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.properties import properties_in
from broker.config.config_loader import load_config

SEPARATORS = {"a unit separator": "\x1f", "a next line": "\x85", "a line separator": "\u2028", "a form feed": "\f"}


@pytest.mark.parametrize("character", SEPARATORS.values(), ids=list(SEPARATORS))
def test_only_line_feeds_and_carriage_returns_end_a_line(tmp_path: Path, character: str) -> None:
    text = f"ssl.key.password=one{character}two\r\nnode.id=7\rlog.dirs=/tmp/x\n"
    found = dict(filter(None, properties_in(text)))
    assert found == {"ssl.key.password": f"one{character}two", "node.id": "7", "log.dirs": "/tmp/x"}
    path = tmp_path / "server.properties"
    path.write_bytes(text.encode())
    config = load_config(str(path), {})
    assert config.given["ssl.key.password"] == f"one{character}two"


def test_a_continued_last_line_ends_with_the_file() -> None:
    assert list(properties_in("a=b\\")) == [("a", "b")]


def test_escapes_are_replaced_and_two_may_be_one_character() -> None:
    assert list(properties_in(r"a\=b=\ud83d\ude00\tc\\")) == [("a=b", "😀\tc\\")]


def test_a_malformed_line_does_not_hide_the_others() -> None:
    assert list(properties_in("nothing\n# a=b\na:c\n")) == [None, ("a", "c")]
