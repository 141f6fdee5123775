"""The fields of a certificate that this node compares.

FORMAT   Certificate ::= SEQUENCE { SEQUENCE { [0] version, serial, algorithm, issuer, validity, subject, key, …
         [3] extensions }, … } (RFC 5280).
NOT HERE Whether a certificate is trusted (OpenSSL), the name of a client (`ssl_principal.py`).
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final, NamedTuple

from broker.security.der import Element, elements, object_identifier

_VERSION_TAG: Final = 0xA0
_EXTENSIONS_TAG: Final = 0xA3
_ALTERNATIVE_NAMES: Final = "2.5.29.17"
_NUMBER_MASK: Final = 0x1F
_TEXTS: Final = frozenset({1, 2, 6})
"""The kinds of alternative names that are texts: mail addresses, host names, URIs."""
_IP_ADDRESS: Final = 7
_IP_LENGTHS: Final = (4, 16)


class CertificateFields(NamedTuple):
    """Names in DER."""

    issuer: bytes
    subject: bytes
    alternative_names: tuple[bytes, ...]


def certificate_fields(certificate: bytes) -> CertificateFields:
    """The fields of a certificate in DER.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        (outer,) = elements(certificate)
        to_be_signed, *_ = elements(outer.content)
        fields = [field for field in elements(to_be_signed.content) if field.tag != _VERSION_TAG]
        return CertificateFields(fields[2].encoded, fields[4].encoded, _alternative_names(fields[5:]))
    except IndexError as error:
        raise ValueError(str(error)) from None


def chain_of(certificates: list[bytes]) -> list[bytes]:
    """The first certificate, its issuer's, and so on, without those that are no part of the chain."""
    first, *others = certificates
    chain = [first]
    while others:
        fields = certificate_fields(chain[-1])
        issuer = next((other for other in others if certificate_fields(other).subject == fields.issuer), None)
        if issuer is None or fields.issuer == fields.subject:
            break
        others.remove(issuer)
        chain.append(issuer)
    return chain


def alternative_names_text(names: tuple[bytes, ...]) -> str:
    """Alternative names as Java prints them, such as [[2, localhost], [7, 127.0.0.1]]."""
    texts = []
    for name in names:
        (element,) = elements(name)
        number = element.tag & _NUMBER_MASK
        if number == _IP_ADDRESS and len(element.content) in _IP_LENGTHS:
            text = str(ip_address(element.content))
        else:
            text = element.content.decode("ascii") if number in _TEXTS else element.content.hex()
        texts.append(f"[{number}, {text}]")
    return f"[{', '.join(texts)}]"


def _alternative_names(fields: list[Element]) -> tuple[bytes, ...]:
    for field in fields:
        if field.tag == _EXTENSIONS_TAG:
            (extensions,) = elements(field.content)
            for extension in elements(extensions.content):
                kind, *_, value = elements(extension.content)
                if object_identifier(kind.content) == _ALTERNATIVE_NAMES:
                    (names,) = elements(value.content)
                    return tuple(name.encoded for name in elements(names.content))
    return ()
