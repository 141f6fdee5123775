"""The error of everything that the user can fix."""

from __future__ import annotations


class ClientError(Exception):
    """The cluster, its settings or the arguments do not allow it; the message is one sentence that says what to do."""


class ArgumentError(ClientError):
    """The arguments of the command are wrong, whatever the cluster is."""
