"""Settings from environment variables, as the image apache/kafka takes them: KAFKA_LOG_DIRS is log.dirs.

RULES    1. KAFKA_ and a setting's name in capitals: its dots are _, its underscores __, its dashes ___.
         2. What names no setting but the JVM, its heap or its logs is passed over.
         3. CLUSTER_ID is the cluster that empty directories are formatted for; without it every such node is in the same one.
         4. Where nothing says where to listen, it is where clients are told to connect, at all addresses.
         5. Without any of these, and without a file, one node serves clients on port 9092.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
"""What the other image begins with."""
MOUNTED: Final = "/mnt/shared/config/server.properties"
DATA: Final = "/var/lib/kafka/data"
_PREFIX: Final = "KAFKA_"
_NO_SETTINGS: Final = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        *(
            "VERSION",
            "OPTS",
            "HEAP_OPTS",
            "JMX_OPTS",
            "JMX_PORT",
            "JMX_HOSTNAME",
            "GC_LOG_OPTS",
            "JVM_PERFORMANCE_OPTS",
        ),
        *("LOG4J_OPTS", "LOG4J_LOGGERS", "LOG4J_ROOT_LOGLEVEL", "TOOLS_LOG4J_LOGLEVEL"),
    )
)
_QUICK: Final = {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://localhost:9092"}


class FromEnvironment(NamedTuple):
    """What the variables say."""

    file: str | None
    """A settings file that was mounted."""
    settings: dict[str, str]
    is_quick: bool
    """Whether nothing was said (rule 5)."""
    cluster_id: str


def from_environment(variables: Mapping[str, str], mounted: str = MOUNTED) -> FromEnvironment:
    """Read the variables; `mounted` is where a settings file would be."""
    said = {_setting(name): text for name, text in variables.items() if _is_setting(name)}
    file = mounted if os.path.exists(mounted) else None
    is_quick = not said and file is None
    settings = dict(_QUICK) if is_quick else said
    advertised = settings.get("advertised.listeners")
    if advertised and not settings.get("listeners") and settings.get("process.roles") != "controller" and file is None:
        settings["listeners"] = re.sub(r"://[^,]*:", "://0.0.0.0:", advertised)
    if file is None:
        settings.setdefault("log.dirs", DATA)
    return FromEnvironment(file, settings, is_quick, variables.get("CLUSTER_ID") or CLUSTER_ID)


def _is_setting(name: str) -> bool:
    return name.startswith(_PREFIX) and name not in _NO_SETTINGS


def _setting(name: str) -> str:
    dotted = name.removeprefix(_PREFIX).lower().replace("_", ".")
    return dotted.replace("...", "-").replace("..", "_")
