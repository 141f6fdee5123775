"""Records over TLS, compared with Apache Kafka: make bench ARGS=tls

One client over raw sockets produces batches of 64 KiB and 1 MB, five in flight, and fetches 64 KiB and 1 MiB at a time, over
TLS 1.3 with the suite TLS_AES_256_GCM_SHA384 on both brokers, and the same without encryption. CPU times are those of the
broker. Both brokers run all the time and have the same certificate (ECDSA, P-256).
"""

from __future__ import annotations

import contextlib
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from barnabas.cluster import free_ports
from tests.benchmark.builds import MeasuredBroker
from tests.benchmark.load import raw
from tests.benchmark.load.meter import Outcome
from tests.benchmark.load.running_broker import Node, RunningBroker, in_turn, start
from tests.benchmark.load.tls_peer import TlsPeer
from tests.benchmark.report.publish import compare
from tests.benchmark.report.rows import NO_AIMS, THEIRS, Results
from tests.benchmark.report.terminal import Wanted, options, show_progress
from tests.support.certificates import Certificates
from tests.support.kafka import STOCK_JVM, ApacheKafka
from tests.support.raw_client import RawClient

KIB, MIB, GIB = 2**10, 2**20, 2**30
SUITE = "TLS_AES_256_GCM_SHA384"
PRODUCE_AIMS = {"CPU s/GiB": 1.0}
FETCH_AIMS = {"CPU s/GiB": 1.0}
_READ = "read"
_LIMIT_S = 120.0

Connect = Callable[[RunningBroker], raw.Peer]


class Scale(NamedTuple):
    produce_bytes: int
    fetch_bytes: int
    log_bytes: int


FULL, QUICK = Scale(GIB, GIB, 512 * MIB), Scale(128 * MIB, 256 * MIB, 128 * MIB)


class Load(NamedTuple):
    name: str
    run: Callable[[RunningBroker, Scale], Outcome]
    aims: Mapping[str, float]


def measure(results: Results, wanted: Wanted) -> None:
    """A round to warm up, then all loads, round after round."""
    scale = QUICK if wanted.quick else FULL
    with running(wanted) as (brokers, connect):
        for broker in brokers:
            show_progress(f"preparing {broker.name}")
            with RawClient(broker.bootstrap) as admin:
                raw.create_topic(admin, _READ)
            raw.fill(broker.bootstrap, _READ, 128 * KIB, scale.log_bytes)
        for turn in range(wanted.rounds + 1):
            for load in loads(connect):
                show_progress(f"round {turn} of {wanted.rounds}: {load.name}")
                for broker in in_turn(brokers, turn) if wanted.wants(load.name) else ():
                    outcome = load.run(broker, scale if turn else QUICK)
                    if turn:
                        results.add(load.name, broker.name, outcome, load.aims)


def loads(connect: Connect) -> list[Load]:
    """All loads in order."""
    made = []
    for label, via, aims in (("TLS", connect, (PRODUCE_AIMS, FETCH_AIMS)), ("plaintext", _plain, (NO_AIMS, NO_AIMS))):
        for size, count in (("64 KiB", 64 * KIB), ("1 MB", 1_000_000)):  # the default limit of a batch is 1 MiB
            made.append(Load(f"{label}: Produce, batches of {size}", partial(_produce, via, count), aims[0]))
        for size, count in (("64 KiB", 64 * KIB), ("1 MiB", MIB)):
            made.append(Load(f"{label}: Fetch {size}", partial(_fetch, via, count), aims[1]))
    return made


def _plain(broker: RunningBroker) -> raw.Peer:
    return raw.Peer(broker.bootstrap)


def _produce(connect: Connect, batch_bytes: int, broker: RunningBroker, scale: Scale) -> Outcome:
    """To a new topic, which is deleted afterwards."""
    topic = f"load-{time.monotonic_ns()}"
    with RawClient(broker.bootstrap) as admin:
        raw.create_topic(admin, topic)
        outcome = raw.produce(broker, topic, batch_bytes, scale.produce_bytes, peer=connect(broker))
        raw.delete_topic(admin, topic)
    return outcome


def _fetch(connect: Connect, max_bytes: int, broker: RunningBroker, scale: Scale) -> Outcome:
    return raw.fetch(broker, _READ, max_bytes, scale.fetch_bytes, peer=connect(broker))


@contextlib.contextmanager
def running(wanted: Wanted) -> Iterator[tuple[list[RunningBroker], Connect]]:
    """Both brokers with a plaintext and a TLS listener, and what connects to the second."""
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        certificates = Certificates(folder)
        keystore = certificates.create("node", "/CN=node")
        context = ssl.create_default_context(cafile=certificates.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        addresses: dict[str, str] = {}
        brokers = []
        for name in [*wanted.builds, *([] if wanted.alone or wanted.against is not None else [THEIRS])]:
            plain, tls, controller = free_ports(3)
            settings = _settings(plain, tls, controller, keystore)
            if name == THEIRS:
                kafka = ApacheKafka(settings, jvm=STOCK_JVM, address=("127.0.0.1", plain))
                kafka.controller_port = controller
                node: Node = kafka
            else:
                limits = {"start_timeout_s": _LIMIT_S, "stop_timeout_s": _LIMIT_S}
                node = MeasuredBroker(wanted.builds[name], settings=settings, **limits)
            held.push(node)
            addresses[name] = f"127.0.0.1:{tls}"
            brokers.append(start(name, node)[0])
        yield brokers, lambda broker: TlsPeer(addresses[broker.name], context, SUITE)


def _settings(plain: int, tls: int, controller: int, keystore: Path) -> dict[str, object]:
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}"
    return {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.enabled.protocols": "TLSv1.3",
    }


def main() -> int:
    return compare(options("tls", __doc__, quick_rounds=1), measure)
