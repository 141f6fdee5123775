"""AlterClientQuotas and DescribeClientQuotas.

RULES    1. A quota applies to a user, a client id, both together, or an IP address; a null name is the default entity.
         2. The checks and messages are Apache Kafka 4.3's (ClientQuotaControlManager). It resolves host names; here the name of
            an IP entity must be an address.
         3. Records and responses have the parts of an entity in the order client-id, user, ip.
NOT HERE Which quota applies to a client (`replication/metadata/client_quotas.py`), enforcement (`broker/quotas/`).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import quotas_scram
from protocol.messages.stored_records import ClientQuotaRecord
from replication.controller.decision_context import DecisionContext
from replication.metadata.client_quotas import ENTITY_TYPES, IP, Entity, entity_of, parts_of
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision
from storage.config.config_def import MAX_INT, MAX_LONG

_CLIENT_QUOTAS = {
    "producer_byte_rate": MAX_LONG,
    "consumer_byte_rate": MAX_LONG,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_IP_QUOTAS = {"connection_creation_rate": MAX_INT}
"""Keys with the largest whole number they take; None: any number."""

_MAX_FRACTION = 1e-6
"""What a whole number may have after its decimal point."""

_EXACT, _DEFAULT, _ANY = 0, 1, 2


# ---- changes ---------------------------------------------------------------------------------------------


def alter_quotas(
    context: DecisionContext, request: quotas_scram.AlterClientQuotasRequest
) -> Decision[quotas_scram.AlterClientQuotasResponse]:
    """Decide on quota changes: each entry completely or not at all; a second entry of an entity is refused."""
    before = context.image.quotas
    records: list[Versioned] = []
    results: dict[Entity, quotas_scram.AlteredQuotasResult] = {}
    for wanted in request.entries:
        entity = entity_of(wanted.entity)
        result = quotas_scram.AlteredQuotasResult(error_code=ErrorCode.NONE, entity=parts_of(entity))
        try:
            if entity in results:
                names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
                raise _invalid_request(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{names}}})")
            records += _alter(before.get(entity, {}), entity, wanted)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
        results[entity] = result
    response = quotas_scram.AlterClientQuotasResponse(entries=list(results.values()))
    return Decision([] if request.validate_only else records, response, is_atomic=False)


def _alter(before: Mapping[str, float], entity: Entity, wanted: quotas_scram.AlteredQuotas) -> list[Versioned]:
    keys = _allowed_keys(entity)
    if len({change.key for change in wanted.ops}) < len(wanted.ops):
        raise _invalid_request("A quota appears more than once.")
    records: list[Versioned] = []
    for change in wanted.ops:
        if not change.remove:
            _check(keys, change.key, change.value)
        after = None if change.remove else change.value
        if after != before.get(change.key):
            record = ClientQuotaRecord(
                entity=parts_of(entity), key=change.key, value=0.0 if after is None else after, remove=change.remove
            )
            records.append((record, 0))
    return records


def _allowed_keys(entity: Entity) -> Mapping[str, int | None]:
    """The quota keys of an entity."""
    if not entity:
        raise _invalid_request("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            raise _invalid_request(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid_request(f"Empty {kind} not supported")
    names_by_type = dict(entity)
    if IP not in names_by_type:
        return _CLIENT_QUOTAS
    if len(names_by_type) > 1:
        raise _invalid_request(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )
    address = names_by_type[IP]
    if address is not None and not _is_address(address):
        raise _invalid_request(f"{address} is not a valid IP or resolvable host.")
    return _IP_QUOTAS


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _check(keys: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid_request(f"Invalid configuration key {key}")
    if not value > 0:
        raise _invalid_request(f"Quota {key} must be greater than 0")
    highest = keys[key]
    if highest is None:
        return
    if value > float(highest):  # Java compares decimal numbers: 2^63 is no larger than the largest LONG
        raise _invalid_request(
            f"Proposed value for {key} is too large for {'an INT' if highest == MAX_INT else 'a LONG'}."
        )
    if math.fmod(value, 1) > _MAX_FRACTION:
        raise _invalid_request(f"{key} cannot be a fractional value.")


def _invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


# ---- describe ------------------------------------------------------------------------------------------


def describe_quotas(
    image: MetadataImage, request: quotas_scram.DescribeClientQuotasRequest
) -> quotas_scram.DescribeClientQuotasResponse:
    """The quotas of the entities that match the filter."""
    try:
        filters = _filters(request.components)
    except KafkaError as error:
        return quotas_scram.DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
    entries = [
        quotas_scram.QuotaEntry(
            entity=parts_of(entity),
            values=[quotas_scram.QuotaValue(key=key, value=value) for key, value in values.items()],
        )
        for entity, values in image.quotas.items()
        if _matches(dict(entity), filters, is_strict=request.strict)
    ]
    return quotas_scram.DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message="", entries=entries)


def _filters(components: Iterable[quotas_scram.QuotaFilter]) -> dict[str, quotas_scram.QuotaFilter]:
    found: dict[str, quotas_scram.QuotaFilter] = {}
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _invalid_request("Invalid empty entity type.")
        if kind in found:
            raise _invalid_request(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        _check_match(component)
        found[kind] = component
    if IP in found and len(found) > 1:
        raise _invalid_request(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return found


def _check_match(component: quotas_scram.QuotaFilter) -> None:
    kind, text = component.match_type, component.match
    if kind not in (_EXACT, _DEFAULT, _ANY):
        raise _invalid_request(f"Unknown match type {kind}")
    if kind == _EXACT and text is None:
        raise _invalid_request("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if kind != _EXACT and text is not None:
        name = "DEFAULT" if kind == _DEFAULT else "SPECIFIED"
        raise _invalid_request(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")


def _matches(
    entity: Mapping[str, str | None], filters: Mapping[str, quotas_scram.QuotaFilter], *, is_strict: bool
) -> bool:
    if is_strict and entity.keys() != filters.keys():
        return False
    return all(
        kind in entity and (wanted.match_type == _ANY or entity[kind] == wanted.match)
        for kind, wanted in filters.items()
    )
