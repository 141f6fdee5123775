"""Random histories of groups: requests of two members, of either or both protocols, and of an administrator.

RULES    1. A history is generated step by step from the responses in memory, and written as a scenario (`run.py`).
         2. Most requests are a client's valid next request; the others use other members, generations and groups.
         3. Results that depend on a hash map are avoided: with two actors the next leader is certain, and
            partitions are assigned by range.
         4. Nothing times out: time differs between the worlds.
         5. Known deliberate differences from Apache Kafka (docs/decisions/0012, 0026, 0027) are avoided.
NOT HERE Comparison with Apache Kafka (`compare_with_kafka.py`).
"""

from __future__ import annotations

import random
import re

from broker.coordinators.group_coordinator import GroupCoordinator
from tests.scenarios.run import Runner, settings_of
from tests.support.group_harness import local_world

ACTORS = ("a", "b")
KINDS = ("classic", "consumer", "mixed")
PARTITIONS = 4
_MEMBER = re.compile(r"^< (\w+) .*?member_id='([^']+)'")
_EPOCH = re.compile(r"(?:generation_id|member_epoch)=(-?\d+)")


class History:
    """One history, generated from a seed."""

    def __init__(self, kind: str, seed: int) -> None:
        self.topic = f"topic.of.{kind}-{seed}"  # contains dots, so that it does not look like a topic id
        self._draw = random.Random(f"{kind} {seed}")
        id_source = random.Random(f"member ids of {kind} {seed}")  # their order determines the assignment
        self._generated_ids = {
            actor: f"!{id_source.randbytes(4).hex()}-of-{actor}" for actor in ACTORS
        }  # sorts before generated ids
        self._kind, self._seed = kind, seed
        self._group = f"{kind}-{seed}"
        self._world = local_world(settings_of(""))
        self._member_ids: dict[str, str] = {}
        self._epochs: dict[str, int] = {}
        self._instances: dict[str, str] = {}
        self._owned: dict[str, list[int]] = {}
        self._producer = ""

    def __repr__(self) -> str:
        return f"{self._kind} {self._seed}"

    def text(self, steps: int) -> str:
        """The scenario with the responses in memory."""
        runner = Runner(self._world)
        runner.named = {self._group, self.topic}
        lines = [f"# {self}", *runner.step(f"= topic {self.topic} {PARTITIONS}"), *self._begin_transaction(runner)]
        for _ in range(steps):
            free = [actor for actor in ACTORS if actor not in runner.waiting]
            actor = self._draw.choice(free) if free else "z"
            lines_of_step = runner.step(f"> {actor} {self._command(actor) if free else self._admin_command()}")
            lines += lines_of_step
            for line in lines_of_step[1:]:
                self._update(line)
        return "\n".join(lines) + "\n"

    def _begin_transaction(self, runner: Runner) -> list[str]:
        """Begin a transaction that stays open."""
        lines_of_step = runner.step(f"> p InitProducerId.4 transactional_id='tx-{self._group}'")
        match = re.search(r"producer_id=(pid\(\d+\))", lines_of_step[1])
        assert match is not None, lines_of_step
        self._producer = f"transactional_id='tx-{self._group}' producer_id={match[1]} producer_epoch=0"
        return lines_of_step

    def _update(self, line: str) -> None:
        actor = line.split()[1]
        if actor not in ACTORS or not line.startswith("<"):
            return
        match = _MEMBER.match(line)
        if match and "members=[(error" not in line and "topics" not in line.split(" member_id", maxsplit=1)[0]:
            self._member_ids[actor] = match[2]
        if "error=NONE" in line:
            epoch = _EPOCH.search(line)
            if epoch:
                self._epochs[actor] = int(epoch[1])
            if "assignment=(" in line:
                partitions = re.search(r"partitions=\[([\d, ]+)\]", line)
                self._owned[actor] = [int(one) for one in partitions[1].split(",")] if partitions else []

    # ---- avoided cases (rule 5)

    @property
    def _has_no_generation(self) -> bool:
        """Whether it is a classic group with members and without a generation."""
        group = next(
            (
                coordinator.classic_groups[self._group]
                for coordinator in self._coordinators
                if self._group in coordinator.classic_groups
            ),
            None,
        )
        return group is not None and not group.generation and bool(group.members)

    @property
    def _is_empty_consumer_group(self) -> bool:
        """Whether it is a consumer group without members."""
        groups = (coordinator.consumer_groups.get(self._group) for coordinator in self._coordinators)
        return any(group is not None and not group.members for group in groups)

    def _has_another(self, member_id: str, instance: str) -> bool:
        """Whether the consumer group has this member id with another or no instance id."""
        groups = (coordinator.consumer_groups.get(self._group) for coordinator in self._coordinators)
        members = [group.members[member_id] for group in groups if group is not None and member_id in group.members]
        return any(member.instance_id != instance for member in members)

    @property
    def _coordinators(self) -> list[GroupCoordinator]:
        return [shard.coordinator for shard in self._world.runtime.shards.values()]

    # ---- generating requests

    def _pick(self, right: str, *wrong: str) -> str:
        return right if self._draw.random() < 0.85 else self._draw.choice(wrong)

    def _member_id(self, actor: str) -> str:
        others = [*self._member_ids.values(), "unknown", ""]
        return self._pick(self._member_ids.get(actor, ""), *others)

    def _epoch(self, actor: str) -> int:
        epoch = self._epochs.get(actor, -1)
        return epoch if self._draw.random() < 0.85 else self._draw.choice([epoch - 1, epoch + 1, -1, 0, 1])

    def _instance(self, actor: str) -> str | None:
        known = self._instances.get(actor)
        if self._draw.random() < 0.9:
            return known
        return self._draw.choice([None, *self._instances.values(), "other"])

    def _command(self, actor: str) -> str:
        draw = self._draw
        if draw.random() < 0.1:
            return self._admin_command()
        kind = self._kind if self._kind != "mixed" else draw.choice(("classic", "consumer"))
        if kind == "consumer" and self._has_no_generation:
            kind = "classic"
        if kind == "consumer":
            steps = (self._beat, self._beat, self._beat, self._beat, self._commit, self._fetch, self._commit_later)
            return draw.choice(steps)(actor)
        steps = (self._join, self._join, self._sync, self._sync, self._heartbeat, self._leave, self._commit)
        return draw.choice((*steps, self._fetch, self._sync, self._commit_later))(actor)

    def _protocols(self) -> str:
        draw = self._draw
        topics = draw.choice([[self.topic], [self.topic], []])
        owned = draw.choice(["", "", f" owned_partitions=[dict(topic='{self.topic}', partitions=[0, 1])]"])
        names = draw.choice([["range"], ["range"], ["range", "roundrobin"], ["roundrobin", "range"], ["roundrobin"]])
        version = 1 if owned else draw.choice([0, 1, 2, 3])
        metadata = f"subscription(topics={topics!r}{',' if owned else ''}{owned}, version={version})"
        listed = ", ".join(f"dict(name='{name}', metadata={metadata})" for name in names)
        return f"protocols=[{listed}]"

    def _join(self, actor: str) -> str:
        draw = self._draw
        version = draw.randint(0, 9)
        words = [f"JoinGroup.{version} group_id='{self._group}' session_timeout_ms=60000"]
        if version >= 1:
            words.append("rebalance_timeout_ms=60000")
        member_id = "" if self._is_empty_consumer_group else self._pick(self._member_id(actor), "", "")
        words.append(f"member_id='{member_id}'")
        if version >= 5:
            if actor not in self._instances and draw.random() < 0.25:
                self._instances[actor] = f"instance-{actor}"
            instance = self._instance(actor)
            words += [] if instance is None else [f"group_instance_id='{instance}'"]
        protocol_type = draw.choice(["consumer"] * 12 + ["connect", ""])
        return " ".join([*words, f"protocol_type='{protocol_type}'", self._protocols()])

    def _sync(self, actor: str) -> str:
        draw = self._draw
        version = draw.randint(0, 5)
        words = [f"SyncGroup.{version} group_id='{self._group}' generation_id={self._epoch(actor)}"]
        words.append(f"member_id='{self._member_id(actor)}'")
        words += self._named_instance(actor, version, 3)
        if version == 5 and draw.random() < 0.2:
            words.append(draw.choice(["protocol_type=None", "protocol_type='connect'", "protocol_name=None"]))
        given = [
            f"dict(member_id='{member_id}', assignment=assignment(assigned_partitions="
            f"[dict(topic='{self.topic}', partitions=[{index}])]))"
            for index, member_id in enumerate(self._member_ids.values())
        ]
        words.append(f"assignments=[{', '.join(given)}]")
        return " ".join(words)

    def _named_instance(self, actor: str, version: int, since: int) -> list[str]:
        instance = self._instance(actor) if version >= since else None
        return [] if instance is None else [f"group_instance_id='{instance}'"]

    def _heartbeat(self, actor: str) -> str:
        version = self._draw.randint(0, 4)
        words = [f"Heartbeat.{version} group_id='{self._group}' generation_id={self._epoch(actor)}"]
        words.append(f"member_id='{self._member_id(actor)}'")
        return " ".join([*words, *self._named_instance(actor, version, 3)])

    def _leave(self, actor: str) -> str:
        version = self._draw.randint(0, 5)
        if version < 3:
            return f"LeaveGroup.{version} group_id='{self._group}' member_id='{self._member_id(actor)}'"
        leaving = []
        for _ in range(self._draw.choice([1, 1, 1, 2])):
            instance = self._instance(actor)
            named = f", group_instance_id='{instance}'" if instance is not None else ""
            member_id = self._draw.choice([self._member_id(actor), self._member_id(actor), ""])
            leaving.append(f"dict(member_id='{member_id}'{named})")
        return f"LeaveGroup.{version} group_id='{self._group}' members=[{', '.join(leaving)}]"

    def _place(self, version: int, since_ids: int, partitions: str) -> str:
        named = self._draw.choice([self.topic] * 6 + ["no-topic"])
        if version < since_ids:
            return f"dict(name='{named}', {partitions})"
        topic_id = "b'no such topic id'" if named == "no-topic" else f"id('{named}')"
        return f"dict(topic_id={topic_id}, {partitions})"

    def _commit(self, actor: str) -> str:
        draw = self._draw
        version = draw.randint(2, 10)
        index = draw.choice([0, 1, 2, 3, 7])
        one = f"dict(partition_index={index}, committed_offset={draw.randint(0, 99)}, committed_metadata='')"
        words = [f"OffsetCommit.{version} group_id='{self._group}'"]
        words.append(f"generation_id_or_member_epoch={self._epoch(actor)} member_id='{self._member_id(actor)}'")
        words += self._named_instance(actor, version, 7)
        return " ".join([*words, f"topics=[{self._place(version, 10, f'partitions=[{one}]')}]"])

    def _commit_later(self, actor: str) -> str:
        draw = self._draw
        index = draw.choice([0, 1, 2, 3, 7])
        one = f"dict(partition_index={index}, committed_offset={draw.randint(0, 99)}, committed_metadata='')"
        words = [f"TxnOffsetCommit.5 group_id='{self._group}' {self._producer}"]
        if draw.random() < 0.7:
            words.append(f"generation_id={self._epoch(actor)} member_id='{self._member_id(actor)}'")
            words += self._named_instance(actor, 5, 5)
        return " ".join([*words, f"topics=[{self._place(5, 10, f'partitions=[{one}]')}]"])

    def _fetch(self, actor: str) -> str:
        draw = self._draw
        version = draw.randint(1, 10)
        place = self._place(version, 10, "partition_indexes=[0, 1, 7]")
        topics = "None" if version >= 2 and draw.random() < 0.4 else f"[{place}]"
        if version < 8:
            return f"OffsetFetch.{version} group_id='{self._group}' topics={topics}"
        member = ""
        if version >= 9 and draw.random() < 0.6:
            member = f", member_id='{self._member_id(actor)}', member_epoch={self._epoch(actor)}"
        return f"OffsetFetch.{version} groups=[dict(group_id='{self._group}', topics={topics}{member})]"

    def _beat(self, actor: str) -> str:
        draw = self._draw
        version = draw.randint(0, 1)
        epoch = self._epochs.get(actor, 0)
        choice = draw.random()
        member_id = self._member_ids.get(actor, self._generated_ids[actor])
        words = [f"ConsumerGroupHeartbeat.{version} group_id='{self._group}'"]
        member_id_text = self._pick(member_id, "unknown", *self._member_ids.values())
        words.append(f"member_id='{member_id_text}'")
        if epoch == 0 and actor not in self._epochs and draw.random() < 0.2:
            self._instances[actor] = f"instance-{actor}"
        is_joining = epoch <= 0 or choice < 0.15
        instance = self._instances.get(actor) if is_joining else self._instance(actor)
        if instance is not None and not (is_joining and self._has_another(member_id_text, instance)):
            words.append(f"instance_id='{instance}'")
        if is_joining:
            topics = draw.choice([f"['{self.topic}']"] * 5 + ["['no-topic']", "None"])
            words.append(f"member_epoch=0 rebalance_timeout_ms=60000 subscribed_topic_names={topics}")
            words.append(draw.choice(["topic_partitions=[]"] * 9 + ["topic_partitions=None"]))
            words.append(draw.choice(["server_assignor='range'"] * 12 + ["server_assignor='none'"]))
            return " ".join(words)
        if choice < 0.25:
            return " ".join([*words, f"member_epoch={draw.choice([-1, -1, -2, -3])}"])
        words.append(f"member_epoch={self._epoch(actor)}")
        if choice < 0.75:
            owned = f"[dict(topic_id=id('{self.topic}'), partitions={self._owned.get(actor, [])})]"
            words.append(f"topic_partitions={owned}")
        if choice > 0.9:
            words.append(f"subscribed_topic_names={draw.choice(['[]', repr([self.topic])])}")
        return " ".join(words)

    def _admin_command(self) -> str:
        group = self._group
        place = f"topics=[dict(name='{self.topic}', partitions=[dict(partition_index=0)])]"
        one = "partitions=[dict(partition_index=1, committed_offset=5, committed_metadata='')]"
        return self._draw.choice(
            [
                f"DescribeGroups.{self._draw.randint(0, 6)} groups=['{group}']",
                f"ListGroups.{self._draw.randint(0, 5)}",
                f"ListGroups.5 types_filter=['{self._draw.choice(['classic', 'consumer'])}']",
                f"ListGroups.4 states_filter=['{self._draw.choice(['Stable', 'Empty', 'PreparingRebalance'])}']",
                f"ConsumerGroupDescribe.1 group_ids=['{group}']",
                f"DeleteGroups.{self._draw.randint(0, 2)} groups_names=['{group}']",
                f"OffsetDelete.0 group_id='{group}' {place}",
                f"OffsetFetch.7 group_id='{group}' topics=None",
                f"OffsetFetch.7 group_id='{group}' topics=None require_stable=True",
                "ListGroups.5 types_filter=['nonsense']",
                "ListGroups.5 states_filter=['Nonsense', 'Assigning', 'Reconciling']",
                f"OffsetCommit.8 group_id='{group}' topics=[dict(name='{self.topic}', {one})]",
            ]
        )
