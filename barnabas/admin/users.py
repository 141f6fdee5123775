"""SCRAM users: list, set a password, delete.

RULES    1. A password never leaves this process: the cluster gets salt, iterations and the salted password (RFC 5802).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from kafka.protocol.admin.users import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest

from barnabas.admin.client import Client
from barnabas.admin.errors import check
from barnabas.client.scram import salted_password

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_SALT_BYTES = 20


class Credential(NamedTuple):
    """A user's credential of one mechanism."""

    user: str
    mechanism: str
    iterations: int


def list_users(client: Client, names: Iterable[str] = ()) -> list[Credential]:
    """Returns the credentials of these users, by default of all. Raises Refused."""
    kind: Any = DescribeUserScramCredentialsRequest.UserName
    users = [kind(name=name) for name in names] or None
    response = client.ask_controller(DescribeUserScramCredentialsRequest(users=users))
    check(response.error_code, response.error_message, "list users", "Describe on the cluster")
    words = {number: word for word, number in MECHANISMS.items()}
    found = []
    for result in response.results:
        check(result.error_code, result.error_message, f"describe user {result.user}", "Describe on the cluster")
        found += [
            Credential(result.user, words.get(info.mechanism, str(info.mechanism)), info.iterations)
            for info in result.credential_infos
        ]
    return sorted(found)


def set_password(client: Client, user: str, password: str, mechanism: str, iterations: int) -> None:
    """Creates or replaces a user's credential. Raises Refused."""
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = salted_password(mechanism, password, salt, iterations)
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name=user, mechanism=MECHANISMS[mechanism], iterations=iterations, salt=salt, salted_password=salted
    )
    _alter(client, f"set the password of user {user}", upsertions=[upsertion])


def delete_user(client: Client, user: str, mechanisms: Iterable[str]) -> None:
    """Deletes a user's credentials of these mechanisms. Raises Refused."""
    kind: Any = AlterUserScramCredentialsRequest.ScramCredentialDeletion
    deletions = [kind(name=user, mechanism=MECHANISMS[mechanism]) for mechanism in mechanisms]
    _alter(client, f"delete user {user}", deletions=deletions)


def _alter(client: Client, action: str, deletions: Iterable[Any] = (), upsertions: Iterable[Any] = ()) -> None:
    request = AlterUserScramCredentialsRequest(deletions=list(deletions), upsertions=list(upsertions))
    for result in client.ask_controller(request).results:
        check(result.error_code, result.error_message, action, "Alter on the cluster")
