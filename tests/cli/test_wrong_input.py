"""Input that a verb cannot use: one sentence, and exit code 2 if it is wrong whatever the cluster is, else 1."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import barnabas
from tests.cli.running import COMMAND, TIMEOUT_S, Verbs

SASL = "-X security.protocol=SASL_PLAINTEXT -X sasl.mechanism=PLAIN -X sasl.jaas.config=username=a;password=b"
TLS = "-X security.protocol=SSL -X ssl.truststore.type=PEM -X ssl.truststore.location=/nope"


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    with barnabas.Broker() as broker:
        verbs = Verbs(broker.bootstrap)
        verbs.rows("topics create there -p 4")
        yield verbs


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("topics trim there:3-1 --all", "The partitions 3-1 are none: the lower number is first, as in 4-6."),
        ("consume there -g g -p 0", "--partition and --group exclude each other: a group assigns partitions to"),
        ("consume there -p 3-1", "The partitions 3-1 are none: the lower number is first, as in 4-6."),
        (f"topics trim there:{'9' * 5000} --all", "Partitions are written 0,2,4-6, not '999"),
        (f"produce there --timestamp {'9' * 5000}", "--timestamp takes Unix milliseconds or now, not 999"),
        (f"produce there -i /dev/null -p {'9' * 5000}", "--partition takes a number or by-key, not 999"),
        (f"consume there --json-path .a[{'9' * 5000}]", "is no path; .order.items[0].id=7 is."),
        (f"configs describe broker {'9' * 5000}", "The name of a broker is its id, or default, not '999"),
        ("topics list --timeout nan", "nan is not a finite number."),
        ("topics list --timeout 3000000", "3000000.0 is not in the range 0.1<=x<=2147483."),
        (f"search -t there -H {'x' * 40_000}=1", "texts have at most 32,767 bytes."),
        (f"produce there -i /dev/null --transactional-id {'x' * 40_000}", "texts have at most 32,767 bytes."),
        ("produce there --rate nan", "nan is not a finite number."),
        ("configs describe broker-logger default", "The name of a broker-logger is its id, not 'default'."),
        ("configs describe broker one", "The name of a broker is its id, or default, not 'one'."),
    ],
)
def test_a_wrong_argument_is_one_sentence_with_exit_code_2(line: str, sentence: str, verbs: Verbs) -> None:
    ended = verbs.run(line)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err


@pytest.mark.parametrize(
    ("address", "sentence"),
    [(",", "--bootstrap names no node."), (f"there:{'9' * 5000}", "--bootstrap takes HOST:PORT[,HOST:PORT...], not")],
)
def test_a_bootstrap_without_an_address_is_refused(address: str, sentence: str) -> None:
    ended = Verbs(address).run("topics list")
    assert (ended.code, sentence in ended.err) == (2, True)


def test_a_number_that_is_too_long_makes_a_record_malformed(verbs: Verbs, tmp_path: Path) -> None:
    (tmp_path / "records").write_text(f"{'9' * 5000}:v")
    ended = verbs.run(f"produce there -q -f %p:%v -i {tmp_path}/records")
    assert (ended.code, ended.err) == (1, "barnabas: Record 1 of the input is malformed: there is no number for %p.\n")


@pytest.mark.parametrize("content", [b"\xff\xfe,0,1\n", b"there,0\n", b"there,0,-1\n", b"there,0,%s\n" % (b"9" * 5000)])
def test_a_file_without_offsets_is_refused(content: bytes, verbs: Verbs, tmp_path: Path) -> None:
    (tmp_path / "offsets").write_bytes(content)
    ended = verbs.run(f"groups reset g --from-file {tmp_path}/offsets")
    assert (ended.code, ended.out) == (2, "")
    assert "topic,partition,offset" in ended.err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("configs describe topic there --key nosuch", "There is no config nosuch of topic there."),
        ("configs set broker-logger 1 nosuch=INFO", "INVALID_CONFIG: Logger nosuch does not exist."),
        ("configs describe client-metrics -X security.protocol=SASL_SSL m", "sasl.mechanism is missing"),
        (f"topics list {TLS}", "The certificates of /nope cannot be used: No such file or directory."),
        (
            f"topics list {SASL}",
            "does not offer the mechanism PLAIN, it offers none: leave SASL out of security.protocol.",
        ),
        ("top --once --metrics 127.0.0.1:1", "There is no metrics page at 127.0.0.1:1: Connection refused."),
    ],
)
def test_what_is_missing_is_named(line: str, sentence: str, verbs: Verbs) -> None:
    assert sentence in verbs.refused(line)


@pytest.mark.parametrize(
    "line",
    [
        f"topics create {'x' * 40_000}",
        f"groups describe {'x' * 40_000}",
        f"configs set topic there retention.ms={'9' * 40_000}",
        f"transactions describe {'€' * 11_000}",
    ],
)
def test_a_text_that_no_request_has_is_not_a_node_that_is_down(line: str, verbs: Verbs) -> None:
    assert "A value does not fit its field in " in verbs.refused(line)


def test_a_password_that_is_not_text(verbs: Verbs) -> None:
    ended = verbs.run("users set alice", stdin="\udcff\n")
    assert (ended.code, ended.err) == (2, "barnabas: The password takes UTF-8, not '\\udcff'.\n")


def test_standard_input_is_closed(verbs: Verbs) -> None:
    line = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "users", "set", "alice", "-b", verbs.bootstrap]
    ended = subprocess.run(line, capture_output=True, timeout=TIMEOUT_S, check=False)
    sentence = b"barnabas: Standard input is closed: the password is its first line.\n"
    assert (ended.returncode, ended.stderr) == (1, sentence)


def test_standard_input_is_only_writable(verbs: Verbs, tmp_path: Path) -> None:
    line = [
        "/bin/sh",
        "-c",
        'exec "$@" 0>"$0"',
        str(tmp_path / "file"),
        *COMMAND,
        "produce",
        "there",
        "-q",
        "-b",
        verbs.bootstrap,
    ]
    ended = subprocess.run(line, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"barnabas: The input cannot be read: Bad file descriptor.\n")


def test_a_user_without_rights_reads_which_are_missing(tmp_path: Path) -> None:
    security = barnabas.Security(protocol="SASL_PLAINTEXT", users={"root": "r", "bob": "b"}, has_acls=True)
    (tmp_path / "lines").write_text("hello\n")
    with barnabas.Broker(security=security) as broker:
        root, bob = (
            Verbs(broker.bootstrap, "--command-config", str(broker.write_client_properties(user)))
            for user in ("root", "bob")
        )
        root.rows("topics create there")
        root.rows("acls add --allow User:bob --topic there --operation describe")
        assert bob.refused(f"produce there -q -l -i {tmp_path}/lines").endswith(
            "grant Write on the topic with barnabas acls."
        )
        assert bob.refused("consume there -g g") == "The cluster denies group g: grant the right with barnabas acls."
