"""Lease records as they lie on disk: DIR/leases/KEY.log while open, DIR/ended/KEY.log after a safe end.

A record is lines of {"format":"mayhem.lease/1","seq":N,"sha256":HEX,"body":{…}}, then NUL up to the
file's size. A later line carries only the top-level keys of the body that changed. The last whole
line counts, a torn one is ignored.

leases/.spare-* are files made ready. A record is a spare with a second name, and only the first one was made
durable: after a reset a record may lie there alone, until recovery gives it its name again.
"""

import hashlib
import json
from pathlib import Path

SAFE_ENDS = ("released", "expired")
FORMAT = "mayhem.lease/1"


class Lease:
    """One record: .body (merged), .state, .moves (states in order), .lines (as written)."""

    def __init__(self, key, path, lines):
        self.key, self.path, self.lines = key, Path(path), lines
        self.body = {}
        self.moves = []
        for line in lines:
            self.body.update(line["body"])
            state = line["body"].get("state")
            if state and (not self.moves or self.moves[-1] != state):
                self.moves.append(state)

    @property
    def id(self):
        return self.body.get("id", self.key)

    @property
    def state(self):
        return self.body.get("state")

    @property
    def mechanism(self):
        return self.body.get("release_mechanism")

    @property
    def holder_pid(self):
        holder = self.body.get("holder") or {}
        return (holder.get("identity") or holder).get("pid")

    @property
    def at_safe_end(self):
        return self.state in SAFE_ENDS

    @property
    def in_ended(self):
        return self.path.parent.name == "ended"

    def __getitem__(self, name):
        return self.body[name]

    def __repr__(self):
        return f"<lease {self.key} {'→'.join(self.moves)} {self.mechanism}>"


def canonical(body):
    """The text that a line's sha256 is over: sorted keys, no blanks."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_log(path, check=True):
    """Reads a record strictly up to its last whole line; ValueError where that does not hold."""
    path = Path(path)
    data = path.read_bytes().rstrip(b"\0")
    lines = []
    for n, raw in enumerate(data.split(b"\n")[:-1], 1):
        line = json.loads(raw)
        if check:
            if line.get("format") != FORMAT:
                raise ValueError(f"{path}:{n}: format {line.get('format')!r}")
            if lines and line["seq"] != lines[-1]["seq"] + 1:
                raise ValueError(f"{path}:{n}: seq {line['seq']} after {lines[-1]['seq']}")
            body = raw[raw.index(b',"body":') + 8:-1]  # as it is written: numbers have many spellings
            if line["sha256"] != hashlib.sha256(body).hexdigest():
                raise ValueError(f"{path}:{n}: checksum")
        lines.append(line)
    return Lease(path.name.removesuffix(".log"), path, lines)


def lease(state_dir, key, check=True):
    """One record, wherever it lies; None while there is none."""
    for folder in ("leases", "ended", "leases"):  # it may be moved between two looks
        try:
            found = read_log(Path(state_dir) / folder / f"{key}.log", check)
        except FileNotFoundError:
            continue
        if found.lines:
            return found
    return None


def leases(state_dir, check=True, spares=False):
    """All records of a state directory, {key: Lease}; ended ones included. With spares, also those whose name a
    reset took, under the id they carry."""
    found, names = {}, []
    for folder in ("leases", "ended"):
        names += sorted((Path(state_dir) / folder).glob("*.log"))
    if spares:
        names += sorted((Path(state_dir) / "leases").glob(".spare-*"))
    for path in names:
        try:
            lease = read_log(path, check)
        except FileNotFoundError:
            try:  # moved to ended/ while we looked
                lease = read_log(Path(state_dir) / "ended" / path.name, check)
            except FileNotFoundError:
                continue
        if lease.lines:
            found.setdefault(lease.id if path.name.startswith(".spare-") else lease.key, lease)
    return found
