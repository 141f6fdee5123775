"""Settings from environment variables, as in the image apache/kafka: KAFKA_LOG_DIRS is log.dirs.

RULES    1. The variable is KAFKA_ and the setting's name in capitals: dots are _, underscores __, dashes ___.
         2. Variables of the JVM, its heap or its logs are ignored.
         3. CLUSTER_ID is the cluster id for formatting empty directories; it has a default, the same for all nodes.
         4. Without listeners, the node listens on all addresses, at the advertised ports.
         5. Without any variable and any file, one node serves clients on port 9092.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
"""The default of the image apache/kafka."""
MOUNTED: Final = "/mnt/shared/config/server.properties"
DATA: Final = "/var/lib/kafka/data"
_PREFIX: Final = "KAFKA_"
_NOT_SETTINGS: Final = """
KAFKA_VERSION KAFKA_OPTS KAFKA_HEAP_OPTS KAFKA_JMX_OPTS KAFKA_JMX_PORT KAFKA_JMX_HOSTNAME KAFKA_GC_LOG_OPTS
KAFKA_JVM_PERFORMANCE_OPTS KAFKA_LOG4J_OPTS KAFKA_LOG4J_LOGGERS KAFKA_LOG4J_ROOT_LOGLEVEL KAFKA_TOOLS_LOG4J_LOGLEVEL
"""
_QUICK_START: Final = {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://localhost:9092"}


class EnvConfig(NamedTuple):
    """The settings from the variables."""

    file: str | None
    """A mounted settings file."""
    settings: dict[str, str]
    is_quick_start: bool
    """Whether there is no setting (rule 5)."""
    cluster_id: str


def read_env_config(variables: Mapping[str, str], mounted: str = MOUNTED) -> EnvConfig:
    """Reads the variables; `mounted` is the path of a mounted settings file."""
    given = {_setting(name): text for name, text in variables.items() if _is_setting(name)}
    file = mounted if os.path.exists(mounted) else None
    is_quick_start = not given and file is None
    settings = dict(_QUICK_START) if is_quick_start else given
    advertised = settings.get("advertised.listeners")
    if advertised and not settings.get("listeners") and settings.get("process.roles") != "controller" and file is None:
        settings["listeners"] = re.sub(r"://[^,]*:", "://0.0.0.0:", advertised)
    if file is None:
        settings.setdefault("log.dirs", DATA)
    return EnvConfig(file, settings, is_quick_start, variables.get("CLUSTER_ID") or CLUSTER_ID)


def _is_setting(name: str) -> bool:
    return name.startswith(_PREFIX) and name not in _NOT_SETTINGS.split()


def variable_of(setting: str) -> str:
    """The variable of a setting (rule 1)."""
    return _PREFIX + setting.replace("_", "__").replace("-", "___").replace(".", "_").upper()


def _setting(name: str) -> str:
    dotted = name.removeprefix(_PREFIX).lower().replace("_", ".")
    return dotted.replace("...", "-").replace("..", "_")
