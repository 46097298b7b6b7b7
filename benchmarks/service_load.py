"""Load on the deletion service: clients at once, server and worker killed with SIGKILL at random moments.

    python benchmarks/service_load.py --requests 1000 --kills 8 --out benchmarks/results/service-load.json

Some clients bring requests over HTTP, each twice and again after every lost answer; one asks for predictions
all the time. At the end every request must have been accepted once and carried out once, the ledger
must check, nobody who was forgotten may be named in any file, and the model must have the digest of one
that was only ever given the people who are left.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from outcome import Outcome
from PIL import Image
from soak import CLASSES, person

from efface import __version__
from efface.data.record import Split
from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.training import Stage
from efface.service.keys import ApiKeys, Role
from efface.service.place import Place
from efface.service.states import State
from efface.workspace import Workspace
from efface.workspace.published import load

STAYING, CLIENTS = 50, 4
SETTINGS = """
lease_seconds = 3
retry_seconds = 1
[batch]
window_seconds = 1
[limits]
per_minute = 1000000
strangers_per_minute = 1000000
"""
PROGRAM = "from efface.cli import main; main()"


def people(number: int) -> Records:
    found = [record for i in range(number) for record in person(f"person-{i:05d}", i)]
    return Records(found, CLASSES)


def fitted(records: Records) -> MixedLinear:
    core = person("core", 10**6, 24, Split.CORE)
    trained = Core("cnn", classes=CLASSES).fit(core, [Stage("all", epochs=2, batch_size=8)])
    return MixedLinear(trained, "compact", features=120).fit(records, replay=core)


class Part:
    """The server or the worker as a process that is killed and started again."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.words, self.environment, self.kills = words, environment, 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", PROGRAM, *self.words]
        return subprocess.Popen(words, env=self.environment, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.kills += 1
        self.process = self._start()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


class Load:
    """The clients, and what they were answered."""

    def __init__(self, port: int, key: str) -> None:
        self.port, self.headers = port, {"Authorization": f"Bearer {key}"}
        self.statuses: Counter[str] = Counter()
        self.numbers: dict[str, set[str]] = {}  # external id -> ids that were answered
        self.seconds: dict[str, list[float]] = {"idle": [], "loaded": []}
        self.lost = 0
        self.phase = "idle"
        self.over = threading.Event()

    def ask(self, method: str, path: str, body: bytes, kind: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {**self.headers, "Content-Type": kind})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def bring(self, names: list[str], pause: float) -> None:
        """Every request twice; after a lost answer again, since nobody knows whether it arrived."""
        for name in names:
            identity = {"identity_type": "owner", "identity_value": name}
            body = json.dumps({"external_id": f"for-{name}", "identities": [identity]}).encode()
            for _ in range(2):
                self._until_answered(name, body)
            time.sleep(pause)

    def _until_answered(self, name: str, body: bytes) -> None:
        while True:
            try:
                status, answer = self.ask("POST", "/v1/requests", body, "application/json")
            except (OSError, http.client.HTTPException):
                self.lost += 1
                time.sleep(0.1)
                continue
            self.statuses[str(status)] += 1
            if status not in (200, 201):
                raise SystemExit(f"status {status}: {answer!r}")
            self.numbers.setdefault(name, set()).add(json.loads(answer)["id"])
            return

    def predict(self, image: bytes) -> None:
        while not self.over.wait(0.02):
            start = time.perf_counter()
            try:
                status, _ = self.ask("POST", "/v1/predict", image, "image/png")
            except (OSError, http.client.HTTPException):
                continue  # the server is dead just now
            self.statuses[f"predict {status}"] += 1
            self.seconds[self.phase].append(time.perf_counter() - start)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Any, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what} took longer than {seconds:.0f} s")
        time.sleep(0.1)


def answers(load_: Load) -> bool:
    try:
        return load_.ask("GET", "/ready", b"", "text/plain")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    dice = random.Random(options.seed)
    everybody = people(options.requests + STAYING)
    Workspace.create(folder / "model", fitted(everybody))
    (folder / "service.toml").write_text(SETTINGS)
    with Place.open(folder / "model", folder / "service.toml") as place:
        key = ApiKeys(place.ledger).new("load", Role.OPERATE)
    port = free_port()
    words = [str(folder / "model"), "--config", str(folder / "service.toml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "EFFACE_LOG": "ERROR"}
    server = Part(["serve", *words, "--port", str(port), "--no-worker"], environment)
    worker = Part(["worker", *words], environment)
    load_ = Load(port, key)
    try:
        started = time.monotonic()
        _under_load(load_, server, worker, options, dice, folder)
        seconds = time.monotonic() - started
    finally:
        load_.over.set()
        server.end()
        worker.end()
    return {
        **checked(folder / "model", load_, everybody, options.requests),
        "seconds": round(seconds, 1),
        "kills": {"server": server.kills, "worker": worker.kills},
        "lost_answers": load_.lost,
        "answers": dict(load_.statuses),
        "prediction_ms": {phase: quantiles(found) for phase, found in load_.seconds.items()},
    }


def _under_load(
    load_: Load,
    server: Part,
    worker: Part,
    options: argparse.Namespace,
    dice: random.Random,
    folder: Path,
) -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 90, np.uint8)).save(file, "PNG")
    until(lambda: answers(load_), 300, "the start")
    threading.Thread(target=load_.predict, args=(file.getvalue(),), daemon=True).start()
    time.sleep(options.idle)
    load_.phase = "loaded"
    names = [f"person-{i:05d}" for i in range(options.requests)]
    shares = [names[i::CLIENTS] for i in range(CLIENTS)]
    clients = [
        threading.Thread(target=load_.bring, args=(share, options.pause)) for share in shares
    ]
    for client in clients:
        client.start()
    for i in range(options.kills):
        time.sleep(dice.uniform(1, options.between))
        (server if i % 2 else worker).kill()
        if i % 2:
            until(lambda: answers(load_), 300, "a new start")
    for client in clients:
        client.join()
    with Place.open(folder / "model", folder / "service.toml") as place:

        def done() -> bool:
            sql = "SELECT COUNT(*) FROM service_tickets WHERE state = ?"
            found = place.ledger.query(sql, (str(State.DONE),))
            return bool(found[0][0] == options.requests)

        until(done, 900, "the work")


def checked(model: Path, load_: Load, everybody: Records, requests: int) -> dict[str, Any]:
    """What must hold, each as a value that says whether it does."""
    with Place.open(model) as place:
        place.ledger.verify()
        rows = [row.values for row in place.ledger.rows() if row.kind == "service.request"]
        tickets = place.ledger.query("SELECT state, release FROM service_tickets")
        place.ledger.scrub()
    counts = {state: Counter(r["request"] for r in rows if r["state"] == state) for state in State}
    gone = {f"person-{i:05d}" for i in range(requests)}
    stays = everybody.where(lambda record: record.owner not in gone)
    twin = fitted(Records([replace(r) for r in stays], CLASSES))
    workspace = Workspace.open(model)
    files = b"".join(p.read_bytes() for p in sorted(model.rglob("*")) if p.is_file())
    digest = load(model).user.weights_digest
    return {
        "accepted_once": all(n == 1 for n in counts[State.RECEIVED].values())
        and len(counts[State.RECEIVED]) == requests
        and all(len(found) == 1 for found in load_.numbers.values()),
        "forgotten_once": all(n == 1 for n in counts[State.DONE].values())
        and len(counts[State.DONE]) == requests
        and set(workspace.records.owners) == set(stays.owners),
        "same_as_never_given": digest == twin.user.weights_digest,
        "ledger_valid": True,  # verify raises
        "nobody_named": not any(name.encode() in files for name in gone),
        "lost": requests - sum(state == str(State.DONE) for state, _ in tickets),
        "requests": requests,
        "releases": len({release for _, release in tickets}),
        "ledger_rows": len(rows),
    }


def quantiles(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.quantile(seconds, (0.5, 0.99)) if seconds else (float("nan"),) * 2
    return {"n": len(seconds), "p50": round(1000 * p50, 2), "p99": round(1000 * p99, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=8, help="worker and server in turn")
    parser.add_argument("--between", type=float, default=8.0, help="most seconds between kills")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between requests")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds of predictions alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        values = run(Path(folder), options)
    held = (
        "accepted_once",
        "forgotten_once",
        "same_as_never_given",
        "ledger_valid",
        "nobody_named",
    )
    good = all(values[name] for name in held) and values["lost"] == 0
    loaded, idle = (values["prediction_ms"][when]["p50"] for when in ("loaded", "idle"))
    Outcome(
        name="service-load",
        question="Requests over HTTP, server and worker killed: is any lost, or done twice?",
        setting={"requests": options.requests, "seed": options.seed, "efface": __version__},
        unit="milliseconds of a prediction, median",
        ours={"while requests come": loaded},
        peers={"with nothing else to do": idle},
        ratios={"with nothing else to do / ours": idle / loaded},
        details={"ok": good, **values},
    ).write(options.out)
    raise SystemExit(0 if good else 3)


if __name__ == "__main__":
    main()
