"""Authorizers that refuse."""

from __future__ import annotations


class DenyingAuthorizer:
    """Refuses everything once it `is_strict`; records (operation, resource type, name)."""

    def __init__(self) -> None:
        self.is_strict = False
        self.asked: list[tuple[str, str, str]] = []

    def authorize(self, principal: str, operation: str, resource_type: str, resource_name: str) -> bool:
        self.asked.append((operation, resource_type, resource_name))
        return not self.is_strict
