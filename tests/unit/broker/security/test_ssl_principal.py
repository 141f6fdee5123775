"""The principal of a client certificate (broker/security/ssl_principal.py). The expected names are Java's."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from broker.security.ssl_principal import NoPrincipal, PrincipalMapper, distinguished_name
from tests.support.certificates import Certificates

NAMES = {
    '/C=DE/ST=Hessen/L=Frankfurt/O=Example, Inc./OU=a\\+b/CN=Jürgen "x" <y>': (
        r"CN=Jürgen \"x\" \<y\>,OU=a\+b,O=Example\, Inc.,L=Frankfurt,ST=Hessen,C=DE"
    ),
    "/DC=org/DC=example/UID=u1/CN= padded ": r"CN=\ padded\ ,UID=u1,DC=example,DC=org",
    "/CN=mail/emailAddress=a@b.c/serialNumber=7/street=s": (
        "STREET=s,2.5.4.5=#130137,1.2.840.113549.1.9.1=#16056140622e63,CN=mail"
    ),
    "/O=o/OU=x+CN=y#;=\\\\": r"OU=x+CN=y\#\;\=\\,O=o",
}


def test_names_are_printed_as_java_does(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    printed = {}
    for number, subject in enumerate(NAMES):
        pem = certificates.create(f"c{number}", subject).read_text()
        printed[subject] = distinguished_name(ssl.PEM_cert_to_DER_cert(pem[: pem.index("-----BEGIN", 5)]))
    assert printed == NAMES


def test_a_broken_certificate_is_an_error() -> None:
    for data in (b"", b"\x30", b"\x30\x05\x02\x01", b"\x30\x82", b"\x30\x02\x30\x00"):
        with pytest.raises(NoPrincipal, match="a certificate cannot be read"):
            distinguished_name(data)


NAME = "CN=kafka1,OU=SME,O=mycp,L=Fulton,ST=MD,C=US"


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [  # the first ones are those of Apache Kafka's SslPrincipalMapperTest
        ("DEFAULT", NAME, NAME),
        ("", NAME, None),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,DEFAULT", "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L , DEFAULT", NAME, "kafka1@sme"),
        ("RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U", "cn=zkadmin,ou=b,dc=corp,dc=com", "ZKADMIN@B"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", NAME, "kafka1"),
        ("RULE:.*\\/x/y/,RULE:^CN=([^,]+).*/$1$3\\$/", NAME, "kafka1$3$"),
        ("RULE:^CN=(.).*/$12/", NAME, "k2"),
        ("RULE:^CN=(?<host>[^,]+),(?<=,).*/${host}-$2/U", NAME, "KAFKA1-$2"),
        ("RULE:^CN=k.*/$0/", NAME, NAME),
        ("RULE:OU=SME/x/", NAME, None),
    ],
)
def test_the_first_rule_that_matches_decides(rules: str, name: str, principal: str | None) -> None:
    mapper = PrincipalMapper(rules)
    if principal is None:
        with pytest.raises(NoPrincipal, match=r"no rule of ssl\.principal\.mapping\.rules applies to CN=kafka1"):
            mapper.name(name)
    else:
        assert mapper.name(name) == principal


@pytest.mark.parametrize(
    "rules",
    [
        *("default", "DEFAUL", "RULE:CN=a", "RULE:a/b", "RULE:(/b/"),
        *("RULE:CN=.*/$1/", "RULE:CN=(.*)/$/", "RULE:CN=(.*)/$x/", "RULE:CN=(?<a>.*)/${b}/"),
    ],
)
def test_an_invalid_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match="Invalid rule"):
        PrincipalMapper(rules)
