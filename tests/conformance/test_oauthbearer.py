"""OAUTHBEARER with unsecured and with signed tokens: the answers are those of Apache Kafka.

RULES    1. Both brokers get the same tokens. `make goldens` records the answers of Apache Kafka; DIFFERENCES are deliberate.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from barnabas import Broker
from broker.config.oauth_configs import JWKS_HANDLER, UNSECURED_HANDLER
from tests.conformance.brokers import KAFKA, RECORDED, assert_as_recorded
from tests.conformance.test_sasl import METADATA, Step, handshake, play, token
from tests.support.goldens import as_json, check_golden, golden
from tests.support.kafka import QUICK_JVM, ApacheKafka, needs_kafka, run_tool
from tests.support.sasl import MODULE, listener_address, sasl_node

PREFIX: Final = "listener.name.sasl_plaintext.oauthbearer"
LOGIN: Final = f"{MODULE}.oauthbearer.OAuthBearerLoginModule required"
SCOPED: Final = f'{LOGIN} unsecuredLoginStringClaim_sub="node" unsecuredValidatorRequiredScope="kafka";'
DIFFERENCES: Final = {"message: basic", "message: no algorithm"}
"""Apache Kafka closes the connection after an exception; this broker answers first."""
HOUR_S: Final = 3600


@contextmanager
def serving(kind: str, settings: dict[str, str], jvm: tuple[str, ...] = ()) -> Iterator[str]:
    """A node with OAUTHBEARER; the address of its SASL listener."""
    node_settings, address = sasl_node()
    kept = {key: text for key, text in node_settings.items() if not key.endswith("sasl.jaas.config")}
    full = kept | {"sasl.enabled.mechanisms": "OAUTHBEARER"} | settings
    node: Any = Broker(settings=full)
    if kind == KAFKA:
        own = {key: text for key, text in full.items() if not key.startswith("barnabas.")}
        host, port = listener_address(full, "PLAINTEXT").split(":")
        node = ApacheKafka(own, address=(host, int(port)), jvm=(*QUICK_JVM, *jvm))
        node.controller_port = int(listener_address(full, "CONTROLLER").split(":")[1])
    with node:
        yield address


def first(bearer: str, header: str = "n,,", pairs: str = "") -> bytes:
    return f"{header}\x01auth=Bearer {bearer}\x01{pairs}\x01".encode()


def asked(message: bytes) -> list[Step]:
    return [handshake("OAUTHBEARER"), token(message)]


def answers_of(address: str, cases: dict[str, list[Step]]) -> dict[str, Any]:
    """The answers, with lifetimes in hours."""
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(cases, pool.map(partial(play, address), cases.values()), strict=True))
    for answers in found.values():
        for answer in answers:
            if isinstance(answer, dict) and "session_lifetime_ms" in answer:
                answer["session_lifetime_ms"] = round(answer["session_lifetime_ms"] / 3_600_000)
    return found


def unsecured(claims: dict[str, Any], algorithm: str = "none") -> str:
    no_key: Any = None
    text: str = jwt.encode(claims, no_key, "none")
    return text if algorithm == "none" else jwt.encode(claims, "a secret of more than thirty-two bytes", algorithm)


def unsecured_cases() -> dict[str, list[Step]]:
    now_s = int(time.time())
    right = {"sub": "alice", "iat": now_s - 60, "exp": now_s + HOUR_S, "scope": ["kafka", "x"]}
    tokens = {
        "right": right,
        "no scope": {**right, "scope": None},
        "other scope": {**right, "scope": ["x"]},
        "scope as text": {**right, "scope": "kafka"},
        "scopes as text": {**right, "scope": "kafka x"},
        "expired": {**right, "exp": now_s - 1},
        "no expiry": {key: value for key, value in right.items() if key != "exp"},
        "no time of issue": {key: value for key, value in right.items() if key != "iat"},
        "issued later": {**right, "iat": now_s + HOUR_S / 2},
        "issued after the expiry": {**right, "iat": now_s + 2 * HOUR_S},
        "no user": {key: value for key, value in right.items() if key != "sub"},
        "a number as user": {**right, "sub": 7},
        "expiry as text": {**right, "exp": "soon"},
    }
    cases = {f"token: {name}": asked(first(_encoded(claims))) for name, claims in tokens.items()}
    text, expired = _encoded(right), _encoded(tokens["expired"])
    messages = {
        "authorization id": first(text, "n,a=alice,"),
        "other authorization id": first(text, "n,a=bob,"),
        "extension": first(text, pairs="traceId=1\x01"),
        "basic": first(text).replace(b"Bearer", b"Basic"),
        "lower case": first(text).replace(b"Bearer", b"bearer"),
        "two spaces": first(text).replace(b"Bearer ", b"Bearer  "),
        "no token": first(""),
        "no auth": b"n,,\x01\x01",
        "y": first(text, "y,,"),
        "no pairs": b"n,,",
        "empty": b"",
        "control": b"\x01",
        "one part": first("abc"),
        "two parts": first("e30.e30"),
        "signature": first(text + "x"),
        "no algorithm": first("e30.e30."),
        "HS256": first(unsecured(right, "HS256")),
    }
    cases |= {f"message: {name}": asked(message) for name, message in messages.items()}
    cases["confirmed refusal"] = [*asked(first(expired)), token(b"\x01")]
    cases["unconfirmed refusal"] = [*asked(first(expired)), token(first(text))]
    cases["right, metadata"] = [*asked(first(text)), METADATA]
    cases["again"] = [*asked(first(text)), *asked(first(text)), METADATA]
    cases["again as another"] = [*asked(first(text)), *asked(first(_encoded({**right, "sub": "bob"})))]
    cases["again, refused"] = [*asked(first(text)), *asked(first(expired)), token(b"\x01")]
    cases["raw"] = [handshake("OAUTHBEARER", 0), first(text), METADATA]
    return cases


def _encoded(claims: dict[str, Any]) -> str:
    """An unsecured token; PyJWT would check some of its claims."""
    encode = jwt.utils.base64url_encode
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(encode(part).decode() for part in parts) + "."


@pytest.mark.parametrize("kind", RECORDED)
def test_unsecured_tokens_are_answered_as_recorded(kind: str) -> None:
    settings = {f"{PREFIX}.sasl.jaas.config": SCOPED, f"{PREFIX}.sasl.server.callback.handler.class": UNSECURED_HANDLER}
    with serving(kind, settings) as address:
        answers = answers_of(address, unsecured_cases())
    if kind == KAFKA:
        check_golden("oauthbearer_unsecured", answers)
    else:
        ours, theirs = as_json(answers), golden("oauthbearer_unsecured")
        assert {name for name in theirs | ours if theirs.get(name) != ours.get(name)} == DIFFERENCES


KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def signed_cases() -> dict[str, list[Step]]:
    now_s = int(time.time())
    right = {
        "sub": "carol",
        "iat": now_s - 60,
        "exp": now_s + HOUR_S,
        "iss": "https://issuer",
        "aud": "kafka",
        "scope": "x",
    }
    changes: dict[str, dict[str, Any]] = {
        "right": {},
        "audiences": {"aud": ["other", "kafka"]},
        "scopes": {"scope": ["x", "y"]},
        "expired": {"exp": now_s - 100},
        "expired within the skew": {"exp": now_s - 5},
        "other issuer": {"iss": "https://other"},
        "other audience": {"aud": "other"},
        "not yet": {"nbf": now_s + HOUR_S / 2},
        "blank user": {"sub": " "},
    }
    tokens = {name: jwt.encode(right | change, KEY, "RS256", headers={"kid": "k"}) for name, change in changes.items()}
    for name in ("exp", "iat", "iss", "aud", "sub", "scope"):
        rest = {key: value for key, value in right.items() if key != name}
        tokens[f"no {name}"] = jwt.encode(rest, KEY, "RS256", headers={"kid": "k"})
    tokens["other key"] = jwt.encode(right, OTHER_KEY, "RS256", headers={"kid": "k"})
    tokens["no key id"] = jwt.encode(right, KEY, "RS256")
    tokens["none"] = _encoded(right)
    tokens["PS256"] = jwt.encode(right, KEY, "PS256", headers={"kid": "k"})
    tokens["secret of the server"] = jwt.encode(
        right, "a secret of more than thirty-two bytes", "HS256", headers={"kid": "k"}
    )
    return {name: [*asked(first(text)), token(b"\x01")] for name, text in tokens.items()}


@pytest.mark.parametrize("kind", RECORDED)
def test_signed_tokens_are_answered_as_recorded(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [json.loads(RSAAlgorithm.to_jwk(KEY.public_key())) | {"kid": "k"}]}))
    url = path.as_uri()
    settings = {
        f"{PREFIX}.sasl.jaas.config": f"{LOGIN};",
        f"{PREFIX}.sasl.server.callback.handler.class": JWKS_HANDLER,
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "kafka",
        "barnabas.sasl.oauthbearer.allowed.urls": url,
    }
    with serving(kind, settings, (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}",)) as address:
        answers = answers_of(address, signed_cases())
    assert_as_recorded("oauthbearer_signed", kind, answers)


@needs_kafka
def test_kafkas_tools_send_a_token(tmp_path: Path) -> None:
    commands = tmp_path / "client.properties"

    def create_topic(address: str, scope: str) -> CompletedProcess[str]:
        login = f'{LOGIN} unsecuredLoginStringClaim_sub="alice" unsecuredLoginListClaim_scope=",{scope}";'
        lines = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", f"sasl.jaas.config={login}")
        commands.write_text("\n".join(lines))
        arguments = ("--bootstrap-server", address, "--command-config", commands, "--create", "--topic", "t")
        return run_tool("org.apache.kafka.tools.TopicCommand", *arguments)

    settings = {f"{PREFIX}.sasl.jaas.config": SCOPED, f"{PREFIX}.sasl.server.callback.handler.class": UNSECURED_HANDLER}
    with serving("barnabas", settings) as address:
        refused = create_topic(address, "other")
        assert '{"status":"insufficient_scope", "scope":"[kafka]"}' in refused.stdout + refused.stderr
        assert create_topic(address, "kafka").stdout.strip() == "Created topic t."
