"""The storage engine of all brokers that tests start: `STORAGE_ENGINE=commitlog make kill`, or any other target.

NOT HERE Tests that name an engine themselves: their setting wins.
"""

from __future__ import annotations

import os
from typing import Any

from barnabas.embedded import Broker

SETTING = "barnabas.log.storage.engine"
SMALL_FILES = {"barnabas.commitlog.file.bytes": "4194304"}
"""Files are created ahead: those of 256 MiB of all brokers would fill the disk."""


def default_engine(environment: Any = os.environ) -> str:
    """The engine of brokers without a setting."""
    return environment.get("STORAGE_ENGINE") or "segments"


def use_engine_of(environment: Any = os.environ) -> None:
    """Set the default of every later broker to the variable STORAGE_ENGINE, if it is set."""
    engine = environment.get("STORAGE_ENGINE")
    if not engine:
        return
    create = Broker.__init__

    def created(self: Broker, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        self.settings.update({SETTING: engine, **SMALL_FILES, **self.settings})

    Broker.__init__ = created  # type: ignore[method-assign]
