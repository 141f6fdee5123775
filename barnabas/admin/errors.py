"""What a cluster refuses, in one sentence that says what to do.

RULES    1. A missing right is named: operation, resource, and the verb that grants it.
         2. Kafka's own message follows where the cluster sends one; otherwise the name of the error and its description.
"""

from __future__ import annotations

from typing import Any

from barnabas.client.error_codes import NAMES, error_name, is_denial
from barnabas.client.errors import ClientError

_TOPIC_MISSING, _GROUP_MISSING = (3, 100), 69


class Refused(ClientError):
    """A cluster does not do what it was asked; the text is one sentence.

    Attributes:
        code: Kafka's error code; 0: the client itself gave up.
        name: The name of the code, such as TOPIC_ALREADY_EXISTS.
    """

    def __init__(self, sentence: str, code: int = 0, name: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        self.name = name


def check(code: int, message: str | None, action: str, right: str = "") -> None:
    """Raises Refused for an error code.

    Args:
        code: The error code of a response or of one of its items.
        message: The cluster's message; None: it sent none.
        action: What was asked, as an infinitive: `create topic flights`.
        right: The right that this needs: `Create on topic flights`.
    """
    if code:
        raise refusal(code, message, action, right)


def refusal(code: int, message: str | None, action: str, right: str = "") -> Refused:
    """Returns the error of an error code; see `check`."""
    from kafka.errors import for_code

    kind: Any = for_code(code)
    name = error_name(code)
    if is_denial(name):
        wanted = right or "this"
        return Refused(f"The cluster denies {wanted}: grant it with barnabas acls add.", code, name)
    subject = action.split(" ", 1)[-1]
    if code in _TOPIC_MISSING:
        return Refused(f"Cannot {action}: it does not exist, or this user may not see it.", code, name)
    if code == _GROUP_MISSING:
        return Refused(f"Cannot {action}: there is no {subject}.", code, name)
    if name == "SECURITY_DISABLED":
        return Refused(f"Cannot {action}: the cluster has no authorizer (setting authorizer.class.name).", code, name)
    reason = (message or ("" if code in NAMES else str(kind.description or ""))).strip().rstrip(".!")
    return Refused(f"Cannot {action}: {name}{f': {reason}' if reason else ''}.", code, name)
