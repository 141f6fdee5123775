"""Access control entries: describe, create, delete; numbers as in `replication/metadata/acls.py`."""

from __future__ import annotations

from protocol.messages.common import ErrorMessageResponse, Response
from protocol.schema import EMPTY, Int8, Int16, Message


class AclFilter(Message):
    """Selects entries; None matches everything. Apache Kafka: DeleteAclsFilter."""

    resource_type_filter: Int8
    resource_name_filter: str | None
    pattern_type_filter: Int8 = 3
    principal_filter: str | None
    host_filter: str | None
    operation: Int8
    permission_type: Int8


class DescribeAclsRequest(AclFilter, api_key=29, versions=(1, 3), flexible=2):
    """Describe the entries that the filter selects."""


class AclDescription(Message):
    """An entry of a resource."""

    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Message):
    """The entries of one resource pattern."""

    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = 3
    acls: list[AclDescription]


class DescribeAclsResponse(ErrorMessageResponse, request=DescribeAclsRequest):
    resources: list[DescribeAclsResource]


class AclCreation(Message):
    """An entry to create."""

    resource_type: Int8
    resource_name: str
    resource_pattern_type: Int8 = 3
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(Message, api_key=30, versions=(1, 3), flexible=2):
    """Create entries; one that exists is no error."""

    creations: list[AclCreation]


class AclCreationResult(Message):
    """The result for one entry."""

    error_code: Int16
    error_message: str | None = None


class CreateAclsResponse(Response, request=CreateAclsRequest):
    results: list[AclCreationResult]


class DeleteAclsRequest(Message, api_key=31, versions=(1, 3), flexible=2):
    """Delete the entries that filters select."""

    filters: list[AclFilter]


class DeleteAclsMatchingAcl(Message):
    """A deleted entry."""

    error_code: Int16 = 0
    error_message: str | None = None
    resource_type: Int8
    resource_name: str
    pattern_type: Int8 = 3
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class DeleteAclsFilterResult(Message):
    """The entries that one filter deleted."""

    error_code: Int16
    error_message: str | None = None
    matching_acls: list[DeleteAclsMatchingAcl] = EMPTY


class DeleteAclsResponse(Response, request=DeleteAclsRequest):
    filter_results: list[DeleteAclsFilterResult]
