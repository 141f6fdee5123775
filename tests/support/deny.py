"""Authorizers for tests that deny some or all operations."""

from __future__ import annotations


class Deny:
    """Denies (operation, resource type, resource name); without a name or with None, all resources of the type."""

    version = 0

    def __init__(self, *denied: tuple[str, str] | tuple[str, str, str | None]) -> None:
        self._denied = set(denied)

    def authorize(
        self, request: object, operation: str, resource_type: str, resource_name: str, **flags: object
    ) -> bool:
        """Whether the operation is allowed."""
        rules = {
            (operation, resource_type, resource_name),
            (operation, resource_type, None),
            (operation, resource_type),
        }
        return not self._denied & rules

    def authorize_any(self, request: object, operation: str, resource_type: str) -> bool:
        """Whether the operation is allowed on some resource of the type."""
        return not self._denied & {(operation, resource_type), (operation, resource_type, None)}


class DenyingAuthorizer:
    """Refuses everything once it `is_strict`; records (operation, resource type, name)."""

    version = 0

    def __init__(self) -> None:
        self.is_strict = False
        self.asked: list[tuple[str, str, str]] = []

    def authorize(
        self, request: object, operation: str, resource_type: str, resource_name: str, **flags: object
    ) -> bool:
        self.asked.append((operation, resource_type, resource_name))
        return not self.is_strict

    def authorize_any(self, request: object, operation: str, resource_type: str) -> bool:
        return self.authorize(request, operation, resource_type, "any")
