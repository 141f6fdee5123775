"""CreateAcls and DeleteAcls in the controller (replication/controller/configs/acls.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.messages import acls, stored_records
from replication.controller.configs import acls as decisions
from tests.support.controller_harness import ControllerHarness

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4


@pytest.fixture
def harness(tmp_path: Path) -> ControllerHarness:
    return ControllerHarness(tmp_path).start()


def creation(name: str = "t", kind: int = 2, principal: str = "User:a", operation: int = 3) -> acls.AclCreation:
    return acls.AclCreation(
        resource_type=kind, resource_name=name, resource_pattern_type=LITERAL, principal=principal, host="*",
        operation=operation, permission_type=3,
    )  # fmt: skip


def wanted(name: str | None = None, pattern: int = ANY, operation: int = ANY) -> acls.AclFilter:
    return acls.AclFilter(
        resource_type_filter=ANY, resource_name_filter=name, pattern_type_filter=pattern, principal_filter=None,
        host_filter=None, operation=operation, permission_type=ANY,
    )  # fmt: skip


def create(harness: ControllerHarness, *creations: acls.AclCreation) -> list[tuple[int, str | None]]:
    response = harness.ask(acls.CreateAclsRequest(creations=list(creations)))
    return [(one.error_code, one.error_message) for one in response.results]


def delete(harness: ControllerHarness, *filters: acls.AclFilter) -> list[tuple[int, set[str]]]:
    response = harness.ask(acls.DeleteAclsRequest(filters=list(filters)))
    return [(one.error_code, {acl.resource_name for acl in one.matching_acls}) for one in response.filter_results]


def test_entries_are_stored_once_and_survive_a_restart(harness: ControllerHarness) -> None:
    end = len(harness.records())
    assert create(harness, creation("t"), creation("u"), creation("t")) == [(0, "")] * 3
    assert create(harness, creation("t")) == [(0, "")]
    records = harness.records()[end:]
    assert [one.resource_name for one in records if isinstance(one, stored_records.AccessControlEntryRecord)] == [
        "t",
        "u",
    ]
    acls_before = harness.image.acls
    assert harness.restart().image.acls == acls_before


def test_invalid_entries_do_not_affect_the_others(harness: ControllerHarness) -> None:
    code = ErrorCode.INVALID_REQUEST
    assert create(harness, creation("x", kind=4), creation(""), creation(principal="me"), creation("ok")) == [
        (code, "The only valid name for the CLUSTER resource is kafka-cluster"),
        (code, "Invalid empty resource name"),
        (
            code,
            "Could not parse principal from `me` (no colon is present separating the principal type from the principal name)",
        ),
        (0, ""),
    ]
    assert [acl.resource_name for acl in harness.image.acls.values()] == ["ok"]


def test_filters_delete_what_they_select(harness: ControllerHarness) -> None:
    create(harness, *(creation(name, operation=operation) for name in ("*", "t", "tt") for operation in (3, 4)))
    assert delete(harness, wanted("t", MATCH, 3), wanted("t", LITERAL, 3)) == [(0, {"*", "t"}), (0, {"t"})]
    assert delete(harness, wanted("t", PREFIXED)) == [(0, set())]
    assert sorted((acl.resource_name, acl.operation) for acl in harness.image.acls.values()) == [
        ("*", 4), ("t", 4), ("tt", 3), ("tt", 4),
    ]  # fmt: skip
    assert delete(harness, wanted()) == [(0, {"*", "t", "tt"})]
    assert harness.image.acls == {}


def test_a_request_changes_a_limited_number_of_entries(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "MAX_RECORDS", 2)
    three = [creation(name) for name in "abc"]
    assert {code for code, _ in create(harness, *three)} == {ErrorCode.INVALID_REQUEST}
    for one in three:
        create(harness, one)
    assert delete(harness, wanted()) == [(ErrorCode.INVALID_REQUEST, set())]
    assert len(harness.image.acls) == 3
