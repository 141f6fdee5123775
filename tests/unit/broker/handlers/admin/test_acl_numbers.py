"""Requests with the number 0 (UNKNOWN) in an ACL (broker/handlers/admin/acls.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.handlers.admin.acls import AclHandlers
from broker.network.exchange import CloseConnection
from broker.security.authorizer import AllowAll
from protocol.api import ApiKey
from protocol.messages.acls import DescribeAclsRequest
from tests.support.replica_harness import ReplicaHarness

ANY = 1


def test_the_reason_of_a_closed_connection_names_the_unknown_fields(tmp_path: Path) -> None:
    """kcl's `acl list` without flags sends resource type 0; Apache Kafka closes its connection too."""
    harness = ReplicaHarness(tmp_path)
    controller: Any = harness  # gets no request
    request = DescribeAclsRequest(
        resource_type_filter=0,
        resource_name_filter=None,
        pattern_type_filter=ANY,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=0,
    )
    with pytest.raises(CloseConnection, match=r"UNKNOWN\) as its resource type and its permission type$"):
        AclHandlers(controller, AllowAll()).describe(harness.context(ApiKey.DESCRIBE_ACLS, 3), request)
