"""The arguments of format --add-scram; the messages are those of kafka-storage of Apache Kafka 4.3.1."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from broker.config.broker_config import ConfigError
from broker.node.format_credentials import parse_credentials
from broker.node.format_options import parse_format_options

SALTED = "mT0yyUUxnlJaC99HXgRTSYlbuqa4FSGtJCJfTMvjYCE="


def test_a_password_is_salted() -> None:
    (record,) = parse_credentials(["SCRAM-SHA-512=[name=alice,password=a=b,salt=MW==,iterations=5000]"])
    salted = hashlib.pbkdf2_hmac("sha512", b"a=b", b"1", 5000)
    assert (record.name, record.mechanism, record.salt, record.iterations) == ("alice", 2, b"1", 5000)
    assert record.server_key == hmac.digest(salted, b"Server Key", "sha512")


def test_a_salted_password_is_stored_under_the_same_keys_as_the_password() -> None:
    salted = "[name=a,salt=MW==,saltedpassword=" + SALTED + "]"
    (record,) = parse_credentials([f" SCRAM-SHA-256={salted}"])
    assert record.iterations == 4096
    assert record.stored_key != record.server_key


def test_salts_are_random() -> None:
    first, second = parse_credentials(['SCRAM-SHA-256=[name="a",password="b",]'] * 2)
    assert first.salt != second.salt
    assert first.name == "a"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("SCRAM-SHA-256", "Failed to find equals sign in SCRAM argument 'SCRAM-SHA-256'"),
        ("SCRAM-SHA-256 =[name=a,password=b]", "The add-scram mechanism SCRAM-SHA-256  is not supported."),
        ("SCRAM-SHA-256=name=a,password=b]", "Expected configuration string to start with ["),
        ("SCRAM-SHA-256=[name=a,password=b", "Expected configuration string to end with ]"),
        ("SCRAM-SHA-256=[]", "No equals sign found in SCRAM component: "),
        ("SCRAM-SHA-256=[name=a,password=b,foo]", "No equals sign found in SCRAM component: foo"),
        ("SCRAM-SHA-256=[password=b]", "You must supply 'name' to add-scram"),
        ("SCRAM-SHA-256=[name=a]", "You must supply one of 'password' or 'saltedpassword' to add-scram"),
        ("SCRAM-SHA-256=[name=a, password=b]", "You must supply one of 'password' or 'saltedpassword' to add-scram"),
        ("SCRAM-SHA-256=[name=a,password=]", "You must supply one of 'password' or 'saltedpassword' to add-scram"),
        (
            f"SCRAM-SHA-256=[name=a,saltedpassword={SALTED}]",
            "You must supply 'salt' with 'saltedpassword' to add-scram",
        ),
        ("SCRAM-SHA-256=[name=a,salt=!!,password=b]", "Failed to decode given salt: !!"),
        ("SCRAM-SHA-256=[name=a,salt=MW,saltedpassword=!!]", "Failed to decode given saltedPassword: [hidden]"),
        ("SCRAM-SHA-256=[name=a,iterations=x,password=b]", "Failed to parse iterations count: x"),
        (
            "SCRAM-SHA-256=[name=a,iterations=4095,password=b]",
            "The 'iterations' value must be >= 4096 for add-scram using SCRAM_SHA_256",
        ),
        (
            "SCRAM-SHA-512=[name=a,iterations=16385,password=b]",
            "The 'iterations' value must be <= 16384 for add-scram using SCRAM_SHA_512",
        ),
        ("SCRAM-SHA-256=[name=a,password=b,foo=1,bar=2]", "Unknown SCRAM configurations: bar,foo"),
    ],
)
def test_malformed_arguments_have_the_messages_of_kafka_storage(argument: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_credentials([argument])
    assert str(error.value) == message


def test_a_file_has_one_credential_in_each_line(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("SCRAM-SHA-256=[name=a,password=b]\n\n SCRAM-SHA-512=[name=c,password=d]\n")
    records = parse_credentials(["SCRAM-SHA-256=[name=e,password=f]", f"@{file}"])
    assert [record.name for record in records] == ["e", "a", "c"]
    with pytest.raises(ConfigError, match=f"^--add-scram: cannot read {file}x: No such file or directory$"):
        parse_credentials([f"@{file}x"])


def test_credentials_need_a_metadata_version_with_their_records() -> None:
    with pytest.raises(ConfigError, match=r"SCRAM is only supported in metadata.version 3.5-IV2 or later."):
        parse_format_options("c", release="3.4", add_scram=["SCRAM-SHA-256=[name=a,password=b]"])
