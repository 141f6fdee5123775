"""Finds the access control entries whose pattern fits a resource.

RULES    1. Entries of one pattern are in Apache Kafka's order; longer names are first, the wildcard last. The order decides
            only which entry the audit log names.
         2. A change costs one comparison of ids per entry, and work for the entries that differ.
NOT HERE What the entries mean (`standard_authorizer.py`).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping

from replication.metadata.acls import WILDCARD, Acl, PatternCode

_Pattern = tuple[int, int, str]
"""Resource type, pattern type, name."""


class AclIndex:
    """Entries by pattern."""

    def __init__(self) -> None:
        self._acls: Mapping[bytes, Acl] = {}
        self._by_pattern: dict[_Pattern, list[Acl]] = {}
        self._prefix_lengths: dict[int, Counter[int]] = {}
        """How many prefixes of each length a resource type has."""

    def replace(self, acls: Mapping[bytes, Acl]) -> None:
        """Index these entries instead of the earlier ones."""
        before, self._acls = self._acls, acls
        for acl_id, acl in before.items():
            if acls.get(acl_id) is not acl:
                self._remove(acl)
        for acl_id, acl in acls.items():
            if before.get(acl_id) is not acl:
                self._add(acl)

    def fitting(self, resource_type: int, name: str) -> Iterator[Acl]:
        """The entries whose pattern fits a resource."""
        by_pattern = self._by_pattern
        yield from by_pattern.get((resource_type, PatternCode.LITERAL, name), ())
        for length in sorted(self._prefix_lengths.get(resource_type, ()), reverse=True):
            if length <= len(name):
                yield from by_pattern.get((resource_type, PatternCode.PREFIXED, name[:length]), ())
        if name != WILDCARD:
            yield from by_pattern.get((resource_type, PatternCode.LITERAL, WILDCARD), ())

    def of_type(self, resource_type: int) -> Iterator[Acl]:
        """All entries of a resource type."""
        return (acl for acl in self._acls.values() if acl.resource_type == resource_type)

    def _add(self, acl: Acl) -> None:
        pattern = acl.resource_type, acl.pattern_type, acl.resource_name
        entries = self._by_pattern.setdefault(pattern, [])
        if not entries and acl.pattern_type == PatternCode.PREFIXED:
            self._prefix_lengths.setdefault(acl.resource_type, Counter())[len(acl.resource_name)] += 1
        insort(entries, acl)

    def _remove(self, acl: Acl) -> None:
        pattern = acl.resource_type, acl.pattern_type, acl.resource_name
        entries = self._by_pattern[pattern]
        entries.remove(acl)
        if not entries:
            del self._by_pattern[pattern]
            if acl.pattern_type == PatternCode.PREFIXED:
                lengths = self._prefix_lengths[acl.resource_type]
                lengths[len(acl.resource_name)] -= 1
                if not lengths[len(acl.resource_name)]:
                    del lengths[len(acl.resource_name)]
