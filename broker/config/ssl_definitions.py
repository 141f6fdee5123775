"""Settings of TLS, with type and default: a listener has those with its prefix, else those without.

FORMAT   see `ignored_configs.py`
NOT HERE Valid values and the effect (`ssl_configs.py`).
"""

from __future__ import annotations

from broker.config.ignored_configs import IGNORED, settings_of

_DOCUMENTATION = "Of listeners with TLS; with the prefix listener.name.NAME. of that listener only."

_STATIC = """
ssl.allow.dn.changes BOOLEAN false
ssl.allow.san.changes BOOLEAN false
ssl.key.password PASSWORD
ssl.keystore.certificate.chain PASSWORD
ssl.keystore.key PASSWORD
ssl.keystore.location STRING
ssl.keystore.password PASSWORD
ssl.keystore.type STRING JKS
ssl.principal.mapping.rules STRING DEFAULT
ssl.truststore.certificates PASSWORD
ssl.truststore.location STRING
ssl.truststore.password PASSWORD
ssl.truststore.type STRING JKS
"""
_DYNAMIC_PER_BROKER = """
ssl.cipher.suites LIST ''
ssl.client.auth STRING none
ssl.enabled.protocols LIST TLSv1.2,TLSv1.3
"""

SSL_DYNAMIC_PER_BROKER = settings_of(_DYNAMIC_PER_BROKER, _DOCUMENTATION)
"""Dynamic, for one broker only."""
SSL_SETTINGS = settings_of(_STATIC, _DOCUMENTATION) | SSL_DYNAMIC_PER_BROKER
"""All of them, by name."""
IGNORED_AND_SSL = IGNORED | SSL_SETTINGS
"""The settings that `BROKER_SETTINGS` does not contain."""
