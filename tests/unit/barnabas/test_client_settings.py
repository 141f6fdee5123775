"""Settings of Kafka's clients, translated for each library."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import Consumer
from kafka.admin import KafkaAdminClient

from barnabas.client.client_settings import for_kafka_python, for_librdkafka, read_properties, security_of
from barnabas.client.errors import ClientError
from barnabas.client.oauth_tokens import TokenSource, oauth_token
from tests.support.certificates import PASSWORD, Certificates
from tests.support.one_answer import answering

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="bob" password="a\\"b;=c";'
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("ca"))


def test_a_file_is_read_as_kafkas_tools_read_it(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# for tools\n!old\n\nsecurity.protocol = SSL\nsasl.jaas.config=a \\\n  b=c;\n")
    assert read_properties(path) == {"security.protocol": "SSL", "sasl.jaas.config": "a b=c;"}


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SSL\n", encoding="utf-8-sig")
    assert read_properties(path) == {"security.protocol": "SSL"}


def test_a_file_has_javas_escapes(tmp_path: Path) -> None:
    """`Broker.write_client_properties` writes passwords with backslashes so."""
    path = tmp_path / "client.properties"
    path.write_text(
        'sasl.jaas.config=a password="x\\\\\\\\y";\nssl.key.password: z\\\\\nclient\\:id=\\u00e9\n# no \\\nb=c\\'
    )
    assert read_properties(path) == {
        "sasl.jaas.config": 'a password="x\\\\y";', "ssl.key.password": "z\\", "client:id": "\xe9", "b": "c"
    }  # fmt: skip


@pytest.mark.parametrize("content", ["security.protocol\n", None])
def test_a_file_that_cannot_be_read_is_named_in_one_sentence(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "client.properties"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ClientError, match=str(path)):
        read_properties(path)


def test_passwords_are_those_of_the_jaas_text() -> None:
    security = security_of(SASL)
    assert (security.username, security.password) == ("bob", 'a"b;=c')


TOKENS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": 'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="bob";',
}


def test_verbs_have_tokens_and_jobs_do_not() -> None:
    provider = for_kafka_python(TOKENS)["sasl_oauth_token_provider"]
    assert provider.token().endswith(".")
    with pytest.raises(ClientError, match="do not authenticate with OAUTHBEARER"):
        for_librdkafka(TOKENS)


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    url = {"sasl.oauthbearer.token.endpoint.url": f"file://{tmp_path}/token"}
    provider = for_kafka_python({**TOKENS, **url})["sasl_oauth_token_provider"]
    with pytest.raises(ClientError, match="gives no token"):
        provider.token()
    (tmp_path / "token").write_text("a.b.c\n")
    assert provider.token() == "a.b.c"


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"])
def test_a_server_that_grants_no_token_is_named(answer: bytes) -> None:
    with answering(answer) as address, pytest.raises(ClientError, match=f"^http://{address}/ gives no token: "):
        oauth_token(TokenSource(f"http://{address}/", {"clientId": "a", "clientSecret": "b"}))


def test_every_library_accepts_its_translation(certificates: Certificates) -> None:
    """Certificates in files and in the settings, with a password of the key."""
    both = certificates.create("bob", "/CN=bob", password=PASSWORD)
    certificate, key = both.read_text().split("-----BEGIN ENCRYPTED")
    in_files = {
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates.ca),
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(both), "ssl.key.password": PASSWORD,
    }  # fmt: skip
    in_texts = {
        "ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificates.ca.read_text(),
        "ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": f"-----BEGIN ENCRYPTED{key}", "ssl.key.password": PASSWORD,
    }  # fmt: skip
    for tls in (in_files, in_texts):
        settings = {**SASL, **tls, "ssl.endpoint.identification.algorithm": "", "client.id": "us"}
        translated = for_librdkafka(settings)
        assert translated["client.id"] == "us"
        Consumer({**translated, "group.id": "g", "log_level": 0}).close()
        context = for_kafka_python(settings)["ssl_context"]
        assert (context.check_hostname, len(context.get_ca_certs())) == (False, 1)
        assert for_kafka_python(settings).keys() <= KafkaAdminClient.DEFAULT_CONFIG.keys()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is TLS"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({**SASL, "sasl.jaas.config": "x required;"}, "username="),
        ({**SASL, "sasl.login.class": "x"}, "sasl.login.class"),
        (
            {**SASL, "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS[:-1] + ' tokenauth="true";'},
            "delegation token",
        ),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites"),
        ({"ssl.truststore.location": "x.jks"}, "ssl.truststore.type=PEM"),
        ({"ssl.keystore.location": "x.p12", "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type=PEM"),
    ],
)
def test_what_not_every_client_understands_is_refused(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ClientError, match=sentence):
        for_librdkafka(settings)


def test_a_certificate_that_is_missing_is_refused(tmp_path: Path) -> None:
    settings = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": f"{tmp_path}/no"}
    with pytest.raises(ClientError, match="cannot be used"):
        for_kafka_python(settings)


@pytest.mark.parametrize("pem", ["\u00e9", "no certificate"])
def test_a_text_that_is_no_certificate_is_refused(pem: str) -> None:
    with pytest.raises(ClientError, match="The certificates of the client settings cannot be used"):
        for_kafka_python({"security.protocol": "SSL", "ssl.truststore.certificates": pem})
