"""Users of Kerberos principals (broker/security/sasl/kerberos_names.py). Some cases are those of Apache Kafka's own test."""

from __future__ import annotations

import pytest

from broker.security.sasl.kerberos_names import KerberosNames, NoLocalName

RULES = [
    "RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g",
    "RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g",
    "DEFAULT",
]


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        (RULES, "App.service-name/example.com@REALM", "service-name"),
        (RULES, "App.service-name@REALM", "service-name"),
        (RULES, "user/host@REALM", "user"),
        (RULES, "user@OTHER", None),
        (["RULE:[1:$1]/L", "RULE:[2:$1-$2]U"], "User@OTHER", "user"),
        (["RULE:[1:$1]/L", "RULE:[2:$1-$2]U"], "user/host@OTHER", "USER-HOST"),
        (["RULE:[1:$1@$0](.*@OTHER)s/@.*//", "DEFAULT"], "user@OTHER", "user"),
        (["RULE:[1:$1]s/([ab])/$1x/"], "aba@REALM", "axba"),
        (["RULE:[1:$1]s/([ab])/$1x/g"], "aba@REALM", "axbxax"),
        (["RULE:[1:$1@$0]", "DEFAULT"], "user@REALM", None),
        (["DEFAULT"], "user", None),
        (["DEFAULT"], "a@b@REALM", None),
        ([], "user@REALM", None),
    ],
)
def test_the_first_rule_that_applies_makes_the_user(rules: list[str], principal: str, user: str | None) -> None:
    names = KerberosNames(rules)
    if user is None:
        with pytest.raises(NoLocalName):
            names.user(principal, "REALM")
    else:
        assert names.user(principal, "REALM") == user


@pytest.mark.parametrize(
    "rule", ["default", "RULE:[1:$1", "RULE:[1:$2]", "RULE:[1:$]", "RULE:[1:$1]s/(/x/", "RULE:[1:$1]s/a/$1/"]
)
def test_an_invalid_rule_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="Invalid rule"):
        KerberosNames([rule])
