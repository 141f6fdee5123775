"""Sentences of refusals."""

from __future__ import annotations

import pytest

from barnabas.admin.errors import Refused, check, refusal
from barnabas.client.error_codes import error_name
from protocol.errors import ErrorCode


def test_errors_have_kafkas_names() -> None:
    assert [error_name(code.value) for code in ErrorCode] == [code.name for code in ErrorCode]


@pytest.mark.parametrize(
    ("code", "message", "sentence"),
    [
        (29, None, "The cluster denies Create on topic x: grant it with barnabas acls add."),
        (3, None, "Cannot create topic x: it does not exist, or this user may not see it."),
        (36, "Topic 'x' already exists.", "Cannot create topic x: TOPIC_ALREADY_EXISTS: Topic 'x' already exists."),
        (134, None, "Cannot create topic x: GROUP_DELETION_FAILED."),
    ],
)
def test_a_refusal_is_one_sentence(code: int, message: str | None, sentence: str) -> None:
    assert str(refusal(code, message, "create topic x", "Create on topic x")) == sentence


def test_a_code_of_an_error_is_raised_with_its_name() -> None:
    check(0, None, "list topics")
    with pytest.raises(Refused) as caught:
        check(41, None, "list topics")
    assert (caught.value.code, caught.value.name) == (41, "NOT_CONTROLLER")
