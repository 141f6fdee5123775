"""Requests to the leaders of partitions, and to nodes whose coordinators load (barnabas/admin/client.py)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from barnabas.admin.client import Client
from barnabas.admin.errors import Refused
from barnabas.admin.groups import list_groups
from barnabas.admin.transactions import list_transactions
from barnabas.client.topic_partition import TopicPartition

UNKNOWN = 3
LOAD_IN_PROGRESS, NOT_AVAILABLE = 14, 15
PARTITION = TopicPartition("new", 0)


def answer(error_code: int) -> Any:
    """A response about the partition."""
    part = SimpleNamespace(partition_index=0, leader_id=1, error_code=error_code)
    return SimpleNamespace(topics=[SimpleNamespace(name="new", error_code=0, partitions=[part])])


def client(*answers: Any, metadata: Any) -> Client:
    """A client whose leader gives these answers, one after the other."""
    made = Client.__new__(Client)
    made.timeout_s = 10.0
    made.ask = Mock(side_effect=answers)  # type: ignore[method-assign]
    made.metadata = metadata  # type: ignore[method-assign]
    return made


def test_a_leader_that_does_not_know_a_new_topic_yet_is_asked_again() -> None:
    asked = client(answer(UNKNOWN), answer(UNKNOWN), answer(0), metadata=Mock(return_value=answer(0)))
    [(tp, part)] = asked.ask_leaders([PARTITION], Mock())
    assert (tp, part.error_code) == (PARTITION, 0)


def test_a_topic_that_is_deleted_meanwhile_is_missing() -> None:
    gone = SimpleNamespace(topics=[SimpleNamespace(name="new", error_code=UNKNOWN, partitions=[])])
    asked = client(answer(UNKNOWN), metadata=Mock(side_effect=[answer(0), gone]))
    with pytest.raises(Refused, match="it does not exist"):
        asked.ask_leaders([PARTITION], Mock())


@pytest.mark.parametrize("list_all", [list_groups, list_transactions])
def test_a_node_whose_coordinators_load_is_asked_again(list_all: Callable[[Client], list[Any]]) -> None:
    """After its start a node with many committed offsets loads them for seconds."""
    answers = [
        SimpleNamespace(error_code=error, groups=[], transaction_states=[])
        for error in (LOAD_IN_PROGRESS, NOT_AVAILABLE, 0)
    ]
    asked = client(*answers, metadata=None)
    asked.node_ids = Mock(return_value=[1])  # type: ignore[method-assign]
    assert list_all(asked) == []


def test_coordinators_that_load_for_longer_than_the_timeout_are_an_error() -> None:
    asked = client(SimpleNamespace(error_code=LOAD_IN_PROGRESS), metadata=None)
    asked.node_ids = Mock(return_value=[1])  # type: ignore[method-assign]
    asked.timeout_s = -1.0
    with pytest.raises(Refused, match="COORDINATOR_LOAD_IN_PROGRESS"):
        list_groups(asked)
