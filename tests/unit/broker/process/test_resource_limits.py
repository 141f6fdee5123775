"""The shares of descriptors (broker/process/resource_limits.py)."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from broker.config.config_loader import load_config
from broker.process.resource_limits import (
    MAX_OPEN_FILES,
    RESERVED_DESCRIPTORS,
    DescriptorLimits,
    allocate_descriptors,
    grow_descriptor_table,
)


@pytest.mark.parametrize(
    ("limit", "wanted", "shares"),
    [
        (1024, -1, DescriptorLimits(480, 480)),
        (20_000, -1, DescriptorLimits(9968, 9968)),
        (20_000, 500, DescriptorLimits(500, 19_436)),
        (1064, 5000, DescriptorLimits(750, 250)),
        (20, -1, DescriptorLimits(2, 2)),
    ],
)
def test_the_shares_of_files_and_connections_are_disjoint(limit: int, wanted: int, shares: DescriptorLimits) -> None:
    assert allocate_descriptors(limit, wanted) == shares
    assert sum(shares) <= max(limit - RESERVED_DESCRIPTORS, 4)


def test_the_setting_has_a_default_and_a_lower_bound() -> None:
    assert load_config(None, {}).number(MAX_OPEN_FILES) == -1
    with pytest.raises(ValueError, match="between 64 and"):
        load_config(None, {MAX_OPEN_FILES: "63"})


def test_the_kernels_table_grows_without_opening_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def slots() -> int:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize"))

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2 * slots(), soft)
    before = os.listdir("/proc/self/fd")
    grow_descriptor_table(wanted)
    assert slots() >= wanted
    assert len(os.listdir("/proc/self/fd")) == len(before)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (wanted, wanted))
    grow_descriptor_table(1 << 40)
    assert len(os.listdir("/proc/self/fd")) == len(before), "more than are allowed is no mistake"
