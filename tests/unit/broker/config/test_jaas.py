"""JAAS texts (broker/config/jaas.py)."""

from __future__ import annotations

import pytest

from broker.config.jaas import InvalidJaas, parse_jaas


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("a.b.Module required;", "a.b.Module", {}),
        ('M REQUIRED user_alice="se;cret" b=word-1.x ;', "M", {"user_alice": "se;cret", "b": "word-1.x"}),
        (r"""M optional "user_a b"='it"s' c="q\"\\\t\101" ;""", "M", {"user_a b": 'it"s', "c": 'q"\\\tA'}),
        ("M /* x; */ sufficient // y\n a='1' / z\n ; ", "M", {"a": "1"}),
        ("M required a = $b a=_c;", "M", {"a": "_c"}),
    ],
)
def test_a_module_is_parsed_with_its_options(text: str, name: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == (name, options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Login module not specified"),
        ("; ", "Login module not specified"),
        ("M", "Login module control flag not specified"),
        ("M user=hunter2;", "Invalid login module control flag"),
        ("M required user_a=7hunter2;", "Value not specified"),
        ("M required user_a;", "Value not specified"),
        ('M required user_a="hunter2"', "not terminated by semi-colon"),
        ('M required user_a="hunter2\n";', "Value not specified"),
        ("M required; N required;", "contains 2 login modules, should be 1 module"),
    ],
)
def test_a_malformed_text_is_refused_without_its_secrets(text: str, words: str) -> None:
    with pytest.raises(InvalidJaas) as refusal:
        parse_jaas(text)
    assert words in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
