"""UpdateFeatures requests and the responses of Apache Kafka 4.3.1, as in admin_cases.py; all are dry runs."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.admin_cases import NONE, Case

UP, SAFE, UNSAFE = 1, 2, 3
Update = tuple[str, int, int]
"""A feature, its level, and what may become of it."""

GROUP, KRAFT, METADATA, ELIGIBLE = (
    "group.version",
    "kraft.version",
    "metadata.version",
    "eligible.leader.replicas.version",
)
ALL_FAILED = "The update failed for all features since the following feature had an error: "
NO_DOWNGRADE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)
_LOSES = "Refusing to perform the requested downgrade because it might delete metadata information."
_UNSAFE = "Unsafe metadata downgrade is not supported in this version."


def updates(*wanted: Update, validate_only: bool = False) -> UpdateFeaturesRequest:
    return UpdateFeaturesRequest(
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=how) for name, level, how in wanted
        ],
        validate_only=validate_only,
    )


def _rows(sentence: str | None, *wanted: Update) -> Case:
    code = NONE if sentence is None else ErrorCode.INVALID_UPDATE_VERSION
    return Case(updates(*wanted, validate_only=True), [("", code, sentence and ALL_FAILED + sentence)])


def _fine(*wanted: Update) -> Case:
    return _rows(None, *wanted)


def _bad(name: str, level: int, how: int, why: str) -> Case:
    return _rows(f"Invalid update version {level} for feature {name}. {why}", (name, level, how))


FEATURES = [
    _fine(),
    _fine((GROUP, 1, UP)),
    _fine((GROUP, 0, SAFE)),
    _fine((GROUP, 0, UNSAFE), ("transaction.version", 1, SAFE), ("share.version", 0, SAFE)),
    _fine((GROUP, 1, SAFE)),
    _fine((ELIGIBLE, 0, SAFE)),
    _fine((ELIGIBLE, 1, UP), ("streams.version", 0, SAFE)),
    _fine((KRAFT, 1, UP)),
    _fine((KRAFT, 1, SAFE)),
    *(_fine((METADATA, 30, how)) for how in (UP, SAFE, UNSAFE)),
    _bad(GROUP, 0, UP, NO_DOWNGRADE),
    _bad(GROUP, 2, UP, "Local controller 1 only supports versions 0-1"),
    _bad(GROUP, 2, SAFE, "Local controller 1 only supports versions 0-1"),
    _bad("transaction.version", 3, UP, "Local controller 1 only supports versions 0-2"),
    *(_bad(GROUP, -1, how, "A feature version cannot be less than 0.") for how in (UP, SAFE)),
    *(_bad(GROUP, level, how, "The controller does not support the given upgrade type.")
      for level, how in ((1, 0), (0, 0), (0, 7))),
    *(_bad(name, 1, UP, "Local controller 1 does not support this feature.") for name in ("nope", "")),
    *(_bad("nope", 0, how, "Feature nope not found.") for how in (UP, SAFE)),
    _bad(KRAFT, 0, UP, NO_DOWNGRADE),
    *(_bad(KRAFT, 0, how, "Can't downgrade the version of this feature.") for how in (SAFE, UNSAFE)),
    _bad(METADATA, 29, UP, NO_DOWNGRADE),
    *(_bad(METADATA, level, UP, "Local controller 1 only supports versions 7-30") for level in (31, 6, 0)),
    *(_rows(f"Unsupported metadata.version downgrade from 30 to {level}. {why}", (METADATA, level, how))
      for level in (29, 22, 7) for how, why in ((SAFE, _LOSES), (UNSAFE, _UNSAFE))),
    _rows("Invalid update version 1 for feature nope. Local controller 1 does not support this feature.",
          (GROUP, 0, SAFE), ("nope", 1, UP)),
]  # fmt: skip
