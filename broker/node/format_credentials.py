"""SCRAM credentials of a new cluster: the arguments of `format --add-scram` (Kafka: ScramParser).

FORMAT   SCRAM-SHA-256=[name=alice,password=…,iterations=8192]
         SCRAM-SHA-512=[name=alice,saltedpassword=base64,salt=base64]
         Values may be in double quotes; they contain no comma.
         @FILE   names a file with one of these in each line: the users of the machine can see command lines, not its contents
RULES    1. Without a salt, it is random; without iterations, they are the fewest that are allowed.
         2. Errors have the messages of kafka-storage.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broker.config.broker_config import ConfigError
from protocol.messages.stored_records import UserScramCredentialRecord
from replication.controller.configs.scram_credentials import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    credential_record,
)

_SALT_BYTES: Final = 20


def parse_credentials(arguments: Sequence[str]) -> tuple[UserScramCredentialRecord, ...]:
    """The records of the arguments, in their order.

    Raises:
        ConfigError: an argument is malformed.
    """
    texts = (text.strip() for argument in arguments for text in _texts(argument))
    return tuple(_record(*_mechanism_and_options(text)) for text in texts)


def _texts(argument: str) -> list[str]:
    """The argument, or the lines of the file that it names."""
    if not argument.startswith("@"):
        return [argument]
    try:
        lines = Path(argument[1:]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--add-scram: cannot read {argument[1:]}: {reason}") from None
    return [line for line in lines if line.strip()]


def _mechanism_and_options(argument: str) -> tuple[str, dict[str, str]]:
    mechanism, separator, options = argument.partition("=")
    if not separator:
        raise ConfigError(f"Failed to find equals sign in SCRAM argument '{argument}'")
    if mechanism not in MECHANISMS:
        raise ConfigError(f"The add-scram mechanism {mechanism} is not supported.")
    if not options.startswith("["):
        raise ConfigError("Expected configuration string to start with [")
    if not options.endswith("]"):
        raise ConfigError("Expected configuration string to end with ]")
    return mechanism, dict(map(_option, (options[1:-1].rstrip(",") or "").split(",")))


def _option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"No equals sign found in SCRAM component: {text}")
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return name, value[1:-1] if is_quoted else value


def _record(mechanism: str, options: dict[str, str]) -> UserScramCredentialRecord:
    name = options.pop("name", None)
    if name is None:
        raise ConfigError("You must supply 'name' to add-scram")
    given_salt = options.pop("salt", None)
    salt = None if given_salt is None else _decoded(given_salt, "salt")
    iterations = _iterations(mechanism, options.pop("iterations", str(MIN_ITERATIONS)))
    password, salted = options.pop("password", None), options.pop("saltedpassword", None)
    if salted is not None and salt is None:
        raise ConfigError("You must supply 'salt' with 'saltedpassword' to add-scram")
    if salted is None and not password:
        raise ConfigError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    salted_password = b"" if salted is None else _decoded(salted, "saltedPassword")
    if options:
        raise ConfigError(f"Unknown SCRAM configurations: {','.join(sorted(options))}")
    number, hash_name = MECHANISMS[mechanism]
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    if salted is None:
        salted_password = hashlib.pbkdf2_hmac(hash_name, (password or "").encode(), salt, iterations)
    return credential_record(name, number, salt, salted_password, iterations)


def _decoded(text: str, what: str) -> bytes:
    try:
        return b64decode(text if "=" in text else text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ConfigError(f"Failed to decode given {what}: {text if what == 'salt' else '[hidden]'}") from None


def _iterations(mechanism: str, text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise ConfigError(f"Failed to parse iterations count: {text}") from None
    shown = mechanism.replace("-", "_")
    if count < MIN_ITERATIONS:
        raise ConfigError(f"The 'iterations' value must be >= {MIN_ITERATIONS} for add-scram using {shown}")
    if count > MAX_ITERATIONS:
        raise ConfigError(f"The 'iterations' value must be <= {MAX_ITERATIONS} for add-scram using {shown}")
    return count
