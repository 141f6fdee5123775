"""The mechanisms of SCRAM (RFC 5802) and the salted password that nodes store; uses the standard library only."""

from __future__ import annotations

import hashlib

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each mechanism."""


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """What a node stores instead of the password."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
