"""Quotas and SCRAM credentials of thousands of users (replication/controller/configs/quotas.py, scram_credentials.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.messages import quotas_scram
from protocol.schema import Message
from tests.support.controller_harness import ControllerHarness
from tests.support.executed_instructions import executed_instructions
from tests.support.messages import message

FEW, MANY = 10, 200


def quotas(*users: str) -> Message:
    """A quota for each user."""
    entity = "producer_byte_rate"
    entries = [
        {
            "entity": [{"entity_type": "user", "entity_name": user}],
            "ops": [{"key": entity, "value": 5.0, "remove": False}],
        }
        for user in users
    ]
    return message(quotas_scram.AlterClientQuotasRequest, entries=entries, validate_only=False)


def credentials(*users: str) -> Message:
    """A credential for each user."""
    upsertions = [
        {"name": user, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"password"}
        for user in users
    ]
    return message(quotas_scram.AlterUserScramCredentialsRequest, deletions=[], upsertions=upsertions)


@pytest.mark.parametrize("change", [quotas, credentials])
@pytest.mark.pure_python("counts the instructions of compiled modules")
def test_a_change_for_one_user_does_not_look_at_the_others(change, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    harness = ControllerHarness(tmp_path).start()
    harness.ask(change(*[f"user-{number}" for number in range(FEW)]))
    few = executed_instructions(lambda: harness.ask(change("one")))
    harness.ask(change(*[f"user-{number}" for number in range(MANY)]))
    many = executed_instructions(lambda: harness.ask(change("two")))
    assert many < few + MANY - FEW
