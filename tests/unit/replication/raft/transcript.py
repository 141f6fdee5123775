"""Plays a transcript: commands to a quorum of Raft replicas, each followed by what the replicas did (as in etcd/raft).

FORMAT   a file of blocks, separated by empty lines; a line that starts with # is a comment:

             command argument... option=value...
             ----
             one line per effect and message, then the state of each replica that changed

         `quiet` before a command leaves out its effects and messages.
         `1>2 Vote ...` is a message from 1 to 2; fields with false, empty or usual values are left out. `3/7` is the end of a
         log: the epoch and the next offset. `1@5` is leader 1 of epoch 5. `2#77` is the replica of node 2 with directory 77.
RULES    1. Time moves only in `advance` and `run`, messages only in `deliver`, `settle` and `run`; there is no jitter.
         2. Disks write at once, unless they are held.
         3. With RECORD_TRANSCRIPTS=1 the output is recorded, not compared.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.primitives import ZERO_UUID
from replication.raft import events, rpc_messages
from replication.raft.quorum_state import QuorumState, QuorumTimes
from replication.raft.raft import Raft
from replication.raft.raft_log import ElectionState, EpochEnd
from replication.raft.roles import Follower
from replication.raft.rpc_messages import LeaderAndEpoch
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog

ADMIN = 0
USUAL = {"max_wait_ms": 500, "max_bytes": 8 << 20, "timeout_ms": 1000, "log_start_offset": 0}
REQUESTS = {
    "vote": rpc_messages.Vote,
    "begin": rpc_messages.BeginEpoch,
    "end": rpc_messages.EndEpoch,
    "fetch": rpc_messages.Fetch,
    "fetch-snapshot": rpc_messages.FetchSnapshot,
    "add": rpc_messages.AddVoter,
    "remove": rpc_messages.RemoveVoter,
    "update": rpc_messages.UpdateVoter,
}


class Message(NamedTuple):
    """A message under way; `number` is the token of its sender, or that of the request it answers."""

    source: int
    target: int
    payload: Any
    number: int
    is_response: bool


class Replica:
    """A node: its process, log and stored election state."""

    def __init__(self, local: Voter, log: MemoryLog, stored: ElectionState, options: dict[str, Any]) -> None:
        self.local = local
        self.log = log
        self.stored = stored
        self.options = options
        self.raft: Raft | None = None
        self.queue: deque[events.Effect] = deque()
        self.writing: events.Effect | None = None
        self.is_held = False
        self.requests: dict[int, tuple[int, int, int]] = {}
        """Of the requests without a response: the source, its number, and the id under which it knows this replica."""
        self.shown = ""


class Quorum:
    """The replicas and messages of one transcript."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._replicas: dict[int, Replica] = {}
        self._messages: list[Message] = []
        self._cut: set[int] = set()
        self._configured = VoterSet()
        self._version = 1
        self._ids = count(1)
        self._lines: list[str] = []

    def play(self, command: str) -> str:
        """Play a command; returns its output."""
        name, *words = command.split()
        is_quiet = name == "quiet"
        name, *words = words if is_quiet else (name, *words)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        arguments = [word for word in words if "=" not in word]
        self._lines = []
        getattr(self, "_" + name.replace("-", "_"))(*arguments, **options)
        self._lines = [] if is_quiet else self._lines
        for node_id, replica in self._replicas.items():
            state = self._describe_state(replica)
            if state != replica.shown:
                replica.shown = state
                self._lines.append(f"{node_id}: {state}")
        return "\n".join(self._lines) + "\n" if self._lines else ""

    # ------------------------------------------------------------ commands: replicas
    def _voters(self, *voters: str, version: str = "1") -> None:
        """Begin with no replica and these voters, in the bootstrap checkpoint or, with version 0, in the configuration."""
        self._now_ms, self._replicas, self._messages, self._cut = 0, {}, [], set()
        self._version = int(version)
        known = [_voter(one) for one in voters]
        if not self._version:
            known = [Voter(ReplicaKey(voter.key.node_id), voter.addresses) for voter in known]
        self._configured = VoterSet(known)

    def _start(self, *names: str, log: str = "", unflushed: str = "", snapshot: str = "0", **options: str) -> None:
        """Start replicas with epochs of records in the log, and a stored election state; `voters=`: they know no voter."""
        for name in names:
            local = _voter(name, options.get("port"))
            memory = MemoryLog(self._configured if "voters" not in options else VoterSet(), self._version)
            memory.append([Entry(int(epoch), value) for value, epoch in enumerate(log.split(",") if log else ())])
            memory.flush(memory.end.offset)
            memory.append([Entry(int(epoch), -9) for epoch in (unflushed.split(",") if unflushed else ())])
            if int(snapshot):
                memory.take_snapshot(int(snapshot))
            vote = options.get("vote")
            stored = ElectionState(
                int(options.get("epoch", 0)), int(options.get("leader", -1)), None if vote is None else _voter(vote).key
            )
            self._replicas[local.key.node_id] = Replica(local, memory, stored, options)
            self._restart(str(local.key.node_id))

    def _restart(self, name: str) -> None:
        """Start a crashed replica again."""
        replica = self._replicas[int(name)]
        state = QuorumState(
            replica.local,
            replica.log,
            replica.stored,
            times=QuorumTimes(),
            jitter=lambda below: min(below - 1, int(replica.options.get("jitter", 0))),
            mono_ms=self._now_ms,
        )
        bootstrap_servers, auto_join = int(replica.options.get("bootstrap", 0)), "autojoin" in replica.options
        replica.raft = Raft(state, bootstrap_servers=bootstrap_servers, auto_join=auto_join)
        self._step(int(name), events.Signal.TICK)

    def _crash(self, name: str) -> None:
        """End the process; records that are not flushed are lost."""
        replica = self._replicas[int(name)]
        replica.raft, replica.writing = None, None
        replica.queue.clear()
        replica.log.truncate(replica.log.flushed_offset)

    def _hold(self, name: str) -> None:
        """The disk writes nothing more."""
        self._replicas[int(name)].is_held = True

    def _release(self, name: str) -> None:
        """The disk completes what was held."""
        node_id = int(name)
        replica = self._replicas[node_id]
        replica.is_held = False
        if (effect := replica.writing) is not None:
            replica.writing = None
            self._write_follower(node_id, effect)
        self._flush(node_id)
        self._run_effects(node_id)

    def _write(self, name: str) -> None:
        """Append a record as leader."""
        replica = self._replicas[int(name)]
        assert replica.raft is not None
        self._append(int(name), [Entry(replica.raft.state.epoch, len(replica.log.entries))])

    def _snapshot(self, name: str, offset: str) -> None:
        """Take a snapshot."""
        self._replicas[int(name)].log.take_snapshot(int(offset))

    def _set_voters(self, name: str, *voters: str) -> None:
        """The voters' record of another leader is in the log."""
        self._append(int(name), [Entry(1, -2, events.AppendVoters(1, VoterSet(_voter(one) for one in voters)))])

    def _resign(self, name: str) -> None:
        self._step(int(name), events.Signal.RESIGN)

    def _upgrade(self, name: str, version: str) -> None:
        """Raise kraft.version, if it is possible."""
        raft = self._replicas[int(name)].raft
        assert raft is not None
        if (error := raft.check_kraft_version(int(version))) is not None:
            self._lines.append(str(error))
        self._step(int(name), events.UpgradeKraftVersion(int(version)))

    # ------------------------------------------------------------ commands: time and messages
    def _advance(self, duration_ms: str) -> None:
        """Let time pass, without messages."""
        self._pass_time(int(duration_ms), is_settling=False)

    def _run(self, duration_ms: str) -> None:
        """Let time pass; messages arrive at once."""
        self._settle()
        self._pass_time(int(duration_ms), is_settling=True)

    def _pass_time(self, duration_ms: int, *, is_settling: bool) -> None:
        end_ms, ticked = self._now_ms + duration_ms, (-1, -1)
        while True:
            due = [
                (deadline_ms, node_id)
                for node_id, replica in self._replicas.items()
                if replica.raft is not None and (deadline_ms := replica.raft.next_deadline_ms) is not None
            ]
            deadline_ms, node_id = min(due, default=(end_ms + 1, 0))
            if deadline_ms > end_ms:
                break
            assert ticked != (deadline_ms, node_id), f"the deadline of {node_id} does not move"
            ticked, self._now_ms = (deadline_ms, node_id), max(self._now_ms, deadline_ms)
            self._lines.append(f"{self._now_ms} ms:")
            self._step(node_id, events.Signal.TICK)
            if is_settling:
                self._settle()
        self._now_ms = end_ms

    def _deliver(self, source: str, target: str, kind: str = "") -> None:
        """The first message of one replica to another arrives, or the first of a type."""
        self._arrive(self._take(source, target, kind))

    def _settle(self) -> None:
        """All messages arrive, and those that follow."""
        for _ in range(200):
            if not self._messages:
                return
            self._arrive(self._messages.pop(0))
        raise AssertionError("the messages do not end")

    def _fail(self, source: str, target: str) -> None:
        """The first message is lost: its sender, or the receiver of a response, gets no response."""
        message = self._take(source, target)
        node_id = message.target if message.is_response else message.source
        self._step(node_id, events.ResponseReceived(int(target), message.number, None))

    def _duplicate(self, source: str, target: str) -> None:
        """The first message will arrive twice."""
        message = self._take(source, target)
        self._messages[:0] = [message, message]

    def _partition(self, *names: str) -> None:
        """Messages from and to these replicas fail."""
        self._cut = {int(name) for name in names}

    def _heal(self) -> None:
        self._cut = set()

    def _take(self, source: str, target: str, kind: str = "") -> Message:
        ends = (int(source), int(target))
        found = (
            number
            for number, one in enumerate(self._messages)
            if (one.source, one.target) == ends and kind in ("", type(one.payload).__name__)
        )
        return self._messages.pop(next(found))

    def _reply(self, source: str, target: str, **options: str) -> None:
        """Answer the first request from `target` to `source` with a response of the transcript."""
        message = self._take(target, source)
        request = message.payload
        cls: Any = rpc_messages.Rejection
        if isinstance(request, rpc_messages.Fetch | rpc_messages.FetchSnapshot):
            cls = getattr(rpc_messages, type(request).__name__ + "Response")
        elif isinstance(request, rpc_messages.ApiVersions):
            cls = rpc_messages.ApiVersionsResponse
        elif isinstance(request, rpc_messages.AddVoter | rpc_messages.RemoveVoter):
            cls = rpc_messages.VoterChangeResponse
        elif isinstance(request, rpc_messages.UpdateVoter):
            cls = rpc_messages.UpdateVoterResponse
        usual = {"snapshot": getattr(request, "snapshot", None), "position": getattr(request, "position", 0)}
        usual |= {"leader": LeaderAndEpoch(int(source), getattr(request, "epoch", 0)), "code": 0}
        given = {name: _parse(name, text) for name, text in options.items()}
        fields = {name: value for name, value in {**usual, **given}.items() if name in cls._fields}
        self._step(int(target), events.ResponseReceived(int(source), message.number, cls(**fields)))

    def _send(self, target: str, kind: str, sender: str, **options: str) -> None:
        """Send a request of an administrator, or one that a replica could have sent."""
        voter = _voter(sender, options.pop("port", None))
        if "versions" in options:
            voter = voter._replace(kraft_versions=_parse("kraft_versions", options.pop("versions")))
        if "listener" in options:
            voter = voter._replace(addresses=(ListenerAddress(options.pop("listener"), "h", 1),))
        usual: dict[str, Any] = {
            "candidate": voter.key, "replica": voter.key, "key": voter.key, "voter": voter, "recipient": ReplicaKey(-1),
            "leader_id": voter.key.node_id, "addresses": voter.addresses, "is_pre_vote": False, "high_watermark": 0,
            "ack_when_committed": True, "timeout_ms": 1000, "preferred_candidates": (), "position": 0,
        }  # fmt: skip
        given = {name: _parse(name, text) for name, text in options.items()}
        cls: Any = REQUESTS[kind]
        request = cls(**{name: value for name, value in {**usual, **given}.items() if name in cls._fields})
        self._arrive(Message(ADMIN, int(target), request, 0, is_response=False))

    # ------------------------------------------------------------ steps
    def _arrive(self, message: Message) -> None:
        node_id = message.target if message.target > 0 else -1 - message.target
        replica = self._replicas.get(node_id)
        is_lost = {node_id, message.source} & self._cut or replica is None or replica.raft is None
        if message.is_response:
            response = None if is_lost else message.payload
            if replica is not None and replica.raft is not None:
                self._step(node_id, events.ResponseReceived(message.source, message.number, response))
        elif is_lost or replica is None:
            self._messages.append(Message(message.target, message.source, None, message.number, is_response=True))
        elif isinstance(message.payload, rpc_messages.ApiVersions):
            self._respond(node_id, message.source, message.number, _versions(replica))
        else:
            request_id = next(self._ids)
            replica.requests[request_id] = (message.source, message.number, message.target)
            self._step(node_id, events.RequestReceived(request_id, message.payload))

    def _respond(self, node_id: int, target: int, number: int, response: Any) -> None:
        self._lines.append(f"{node_id}>{target or 'admin'} {_describe(response)}")
        if target != ADMIN:
            self._messages.append(Message(node_id, target, response, number, is_response=True))

    def _step(self, node_id: int, event: events.Event) -> None:
        replica = self._replicas[node_id]
        if replica.raft is not None:
            replica.queue.extend(replica.raft.step(event, self._now_ms))
            self._run_effects(node_id)

    def _run_effects(self, node_id: int) -> None:
        replica = self._replicas[node_id]
        while replica.queue and replica.writing is None:
            effect = replica.queue.popleft()
            if isinstance(effect, events.SendRequest):
                self._lines.append(f"{node_id}>{effect.to} {_describe(effect.request)}")
                self._messages.append(Message(node_id, effect.to, effect.request, effect.token, is_response=False))
            elif isinstance(effect, events.SendResponse):
                source, number, known_as = replica.requests.pop(effect.request_id)
                self._respond(known_as, source, number, effect.response)
            else:
                self._lines.append(f"{node_id} {_describe(effect)}")
                self._execute(node_id, effect)

    def _execute(self, node_id: int, effect: events.Effect) -> None:
        replica = self._replicas[node_id]
        if isinstance(effect, events.Persist):
            replica.stored = effect.state
        elif isinstance(effect, events.BecomeLeader):
            voters = [] if effect.append_voters is None else [Entry(effect.epoch, -2, effect.append_voters)]
            self._append(node_id, [Entry(effect.epoch, -1), *voters])
        elif isinstance(effect, events.AppendVoters):
            self._append(node_id, [Entry(effect.epoch, -2, effect)])
        elif not isinstance(effect, events.Fail):
            replica.writing = effect
            if not replica.is_held:
                replica.writing = None
                self._write_follower(node_id, effect)

    def _append(self, node_id: int, entries: list[Entry]) -> None:
        self._replicas[node_id].log.append(entries)
        self._step(node_id, events.Signal.LOG_APPENDED)
        if not self._replicas[node_id].is_held:
            self._flush(node_id)

    def _flush(self, node_id: int) -> None:
        log = self._replicas[node_id].log
        if log.flushed_offset < log.end.offset:
            log.flush(log.end.offset)
            self._step(node_id, events.Signal.LOG_FLUSHED)

    def _write_follower(self, node_id: int, effect: events.Effect) -> None:
        log = self._replicas[node_id].log
        if isinstance(effect, events.AppendBatches):
            log.append(effect.records)
            log.flush(log.end.offset)
        elif isinstance(effect, events.Truncate):
            log.truncate(effect.offset)
        elif isinstance(effect, events.WriteSnapshotChunk):
            log.write_snapshot_chunk(effect.snapshot, effect.position, effect.piece, is_last=effect.is_last)
        self._step(node_id, events.Signal.WRITE_COMPLETED)

    def _describe_state(self, replica: Replica) -> str:
        if replica.raft is None:
            return "down"
        state = replica.raft.state
        log = replica.log
        led = f" of {state.leader_id}" if isinstance(state.role, Follower) else ""
        known = f" knows={state.leader_id}" if not led and state.leader_id not in (-1, state.local.key.node_id) else ""
        begins = f" from {log.start_offset}" if log.start_offset else ""
        voters = "" if state.voters == self._configured else f" voters={_text(state.voters)}"
        version = "" if log.kraft_version.latest == self._version else f" kraft.version={log.kraft_version.latest}"
        role = f"{type(state.role).__name__}{led}{known} epoch={state.epoch}"
        return f"{role} log={_text(log.end)}{begins} committed={state.high_watermark}{voters}{version}"


def _versions(replica: Replica) -> rpc_messages.ApiVersionsResponse:
    return rpc_messages.ApiVersionsResponse(0, replica.local.kraft_versions)


# ---- text ------------------------------------------------------------------------------------------------------


def _voter(text: str, port: str | None = None) -> Voter:
    """`2` is the usual replica of node 2, `2#77` the one with another directory, `2#0` the one without."""
    node, _, directory = text.partition("#")
    node_id = int(node)
    key = ReplicaKey(node_id, bytes([int(directory) if directory else node_id % 256] * 16))
    address = ListenerAddress("CONTROLLER", f"host{node_id}", int(port) if port else 9000 + node_id)
    return Voter(key, (address,), (0, 1))


def _parse(name: str, text: str) -> Any:
    if name in ("end", "snapshot", "diverging"):
        return EpochEnd(*map(int, text.split("/")))
    if name == "recipient":
        return _voter(text).key
    if name == "preferred_candidates":
        return tuple(_voter(one).key for one in text.split(","))
    if name == "leader":
        leader_id, epoch = map(int, text.split("@"))
        return LeaderAndEpoch(leader_id, epoch, _voter(str(leader_id)).addresses[0])
    if name in ("records", "chunk"):
        return [Entry(int(epoch), -7) for epoch in text.split(",")]
    if name == "kraft_versions":
        return tuple(map(int, text.split("-")))
    if name == "code":
        return ErrorCode[text]
    return {"yes": True, "no": False}[text] if text in ("yes", "no") else int(text)


def _describe(value: Any) -> str:
    """The name of a message or effect and its fields."""
    fields = [
        name if field is True else f"{name}={_text(field)}" if name != "code" else ErrorCode(field).name
        for name, field in value._asdict().items()
        if (field or (field == 0 and name in ("position", "epoch", "offset"))) and field != USUAL.get(name)
    ]
    if isinstance(value, events.Persist):
        state = value.state
        fields = [f"epoch={state.epoch}", *([f"leader={state.leader_id}"] if state.leader_id >= 0 else [])]
        fields += [] if state.voted_key is None else [f"vote={_text(state.voted_key)}"]
    return " ".join([type(value).__name__, *fields])


def _text(value: Any) -> str:
    if isinstance(value, EpochEnd):
        return f"{value.epoch}/{value.offset}"
    if isinstance(value, LeaderAndEpoch):
        return f"{value.leader_id if value.leader_id >= 0 else 'none'}@{value.epoch}" + (
            "" if value.address is None else f":{value.address.port}"
        )
    if isinstance(value, ReplicaKey):
        directory = "#0" if value.directory_id == ZERO_UUID else f"#{value.directory_id[0]}"
        return str(value.node_id) + ("" if value.directory_id[0] == value.node_id % 256 else directory)
    if isinstance(value, Voter):
        ports = [address.port for address in value.addresses if address.port != 9000 + value.key.node_id]
        return _text(value.key) + "".join(f":{port}" for port in ports)
    if isinstance(value, ListenerAddress):
        return str(value.port)
    if isinstance(value, Entry):
        return {-1: "leads", -2: "voters"}.get(value.value, "record") + f"@{value.epoch}"
    if isinstance(value, events.AppendVoters):
        return _text(value.voters)
    if isinstance(value, VoterSet | list | tuple) and not hasattr(value, "_fields"):
        return "[" + " ".join(_text(one) for one in value) + "]"
    return str(value)


# ---- files -----------------------------------------------------------------------------------------------------


def check(path: Path) -> None:
    """Play a transcript and compare the output, or record it (rule 3).

    Raises:
        AssertionError: the output differs.
    """
    quorum, played = Quorum(), []
    recorded = path.read_text()
    for block in recorded.strip().split("\n\n"):
        lines = block.split("\n")
        number = next((number for number, line in enumerate(lines) if not line.startswith("#")), None)
        if number is None:
            played.append(block + "\n")
            continue
        head = lines[: number + 1]
        try:
            output = quorum.play(head[-1])
        except Exception as error:
            error.add_note(f"{path.name}: {head[-1]}")
            raise
        played.append("\n".join([*head, "----", output]))
    text = "\n".join(played)
    if os.environ.get("RECORD_TRANSCRIPTS"):
        path.write_text(text)
    assert path.read_text() == text, "RECORD_TRANSCRIPTS=1 records this output"
