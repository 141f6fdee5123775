"""`kafka_python.prepare`: submodules are imported alone, and the package still has all its names."""

from __future__ import annotations

import subprocess
import sys


def run(program: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_a_submodule_is_imported_without_the_package() -> None:
    found = run("""
from barnabas.client.kafka_python import prepare
prepare()
import sys, kafka.net.manager
print(*sorted({"kafka.net.manager", "kafka.consumer", "kafka.protocol.admin.acl"} & sys.modules.keys()))
""")
    assert found == ["kafka.net.manager"]


def test_all_names_of_the_packages_are_there() -> None:
    found = run("""
from barnabas.client.kafka_python import prepare
prepare()
import kafka.protocol.admin.groups
from kafka import *
from kafka.protocol.admin import *
from kafka.protocol.consumer import *
assert ListGroupsRequest is kafka.protocol.admin.groups.ListGroupsRequest
print(KafkaConsumer.__name__, DeleteAclsRequest.__name__, FetchRequest.__name__, kafka.__version__ > "3")
""")
    assert found == ["KafkaConsumer", "DeleteAclsRequest", "FetchRequest", "True"]


def test_a_program_that_has_imported_the_package_keeps_it() -> None:
    found = run("""
import kafka
from barnabas.client.kafka_python import prepare
prepare()
import sys
print(sys.modules["kafka"] is kafka, "KafkaConsumer" in vars(kafka))
""")
    assert found == ["True", "True"]
