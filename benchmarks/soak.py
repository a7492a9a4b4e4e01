"""The real server under mixed traffic and faults, for as long as you like.

    python -m benchmarks.soak --minutes 20 --json

Runs `semblend serve` in its own process with the bundled model and its certificate: stores far
too small for the load, one boundary in a hundred failing on purpose, four tenants, and clients
that hang up, misbehave and guess keys.

Checks a sample of the answers by asking the same server again with reuse and donation off. If
nothing approximate was reused (cold, exact prefix, declined), the text must match cold character
for character. If donor K/V was reused for a document that only moved, cold's right answer must
not become a wrong one. Edited documents are bounded-approximate by certificate: their changed
answers are counted and reported separately.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import psutil

from benchmarks.soak_traffic import Call, Kind, Manner, Traffic
from semblend.bench.benchmark_report import BenchmarkReport

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "semblend-reference-27m"
TENANTS = 4
FAULTS = (
    "index_write",
    "index_read",
    "plan",
    "lease",
    "tier_read",
    "tier_write",
    "checksum",
    "disk_read",
    "disk_full",
    "slow_disk",
    "allocation",
    "pool",
    "copy",
    "nested_pass",
    "capture",
    "settlement",
    "killed_worker",
)
_WARM_UP = 0.4
"""Share of the time after which memory must be flat."""


@dataclass
class Books:
    """What happened; the clients' threads share it under a lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    manners: collections.Counter[str] = field(default_factory=collections.Counter)
    checked: collections.Counter[str] = field(default_factory=collections.Counter)
    unlike: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)


class Client(threading.Thread):
    """Sends calls until told to stop."""

    def __init__(
        self, server: Server, traffic: Traffic, books: Books, stop: threading.Event, sample: float
    ) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._traffic = traffic
        self._books = books
        self._over = stop
        self._every = max(1, round(1 / sample))
        self._count = 0
        self._http = httpx.Client(base_url=server.url, timeout=120, trust_env=False)

    def run(self) -> None:
        with self._http:
            while not self._over.is_set():
                with self._books.lock:
                    call = self._traffic.next()
                    self._books.manners[call.manner.value] += 1
                try:
                    self._do(call)
                except httpx.HTTPError as error:
                    with self._books.lock:
                        self._books.unexpected.append(f"{call.manner.value}: {error!r}")

    def _do(self, call: Call) -> None:
        if call.manner is Manner.HANG_UP_EARLY:
            self._hang_up_early(call)
        elif call.manner is Manner.HANG_UP_AMID:
            with self._stream(call) as reply:
                self._note(call, reply)
                next(reply.iter_raw(), None)
        elif call.manner is Manner.STREAM:
            self._whole_stream(call)
        else:
            self._whole(call)

    def _whole(self, call: Call) -> None:
        started = time.perf_counter()
        intruder = call.manner is Manner.INTRUDER
        key = "sk-nobody-0123456789" if intruder else self._server.key(call.tenant)
        reply = self._post(call, key)
        self._note(call, reply, seconds=time.perf_counter() - started)
        expected = {Manner.MALFORMED: 400, Manner.INTRUDER: 401}.get(call.manner)
        if expected is not None and reply.status_code not in (expected, 503):
            with self._books.lock:
                self._books.unexpected.append(f"{call.manner.value}: {reply.status_code}")
        if expected is None and reply.status_code == 200:
            answer = reply.json()["choices"][0]["message"]["content"]
            self._check(call, answer, reply.headers["x-semblend-outcome"])

    def _whole_stream(self, call: Call) -> None:
        started = time.perf_counter()
        with self._stream(call) as reply:
            text = "".join(reply.iter_text())
        self._note(call, reply, seconds=time.perf_counter() - started)
        if reply.status_code != 200:
            return
        if not text.endswith("data: [DONE]\n\n"):
            with self._books.lock:
                self._books.unexpected.append(f"stream without its end: {text[-200:]}")
            return
        chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        deltas = (c["delta"].get("content") for chunk in chunks for c in chunk["choices"])
        self._check(call, "".join(filter(None, deltas)), reply.headers["x-semblend-outcome"])

    def _check(self, call: Call, answer: str, outcome: str) -> None:
        self._count += 1
        if self._count % self._every:
            return
        reply = self._post(call, self._server.key(call.tenant), reuse=False)
        if reply.status_code != 200:
            self._note(call, reply)
            return
        cold = reply.json()["choices"][0]["message"]["content"]
        prompt = call.prompt
        approximate = outcome == "materialised"
        group = f"{'reused' if approximate else 'exact'}, {prompt.kind.value}"
        lost = prompt.states_fact(cold) and not prompt.states_fact(answer)
        with self._books.lock:
            self._books.checked[group] += 1
            self._books.unlike[group] += answer != cold
            if (answer != cold and not approximate) or (lost and prompt.kind is not Kind.EDITED):
                self._books.wrong.append(f"{group} ({outcome}): {answer!r}, cold {cold!r}")

    def _hang_up_early(self, call: Call) -> None:
        """Send a whole request over a separate socket and close it at once."""
        body = json.dumps(call.body(self._server.model)).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"authorization: Bearer {self._server.key(call.tenant)}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", self._server.port), timeout=30) as line:
            line.sendall(head + body)
            time.sleep(0.02)

    def _post(self, call: Call, key: str, *, reuse: bool = True) -> httpx.Response:
        return self._http.post(
            "/v1/chat/completions",
            json=call.body(self._server.model, reuse=reuse),
            headers={"authorization": f"Bearer {key}"},
        )

    @contextmanager
    def _stream(self, call: Call) -> Iterator[httpx.Response]:
        with self._http.stream(
            "POST",
            "/v1/chat/completions",
            json=call.body(self._server.model),
            headers={"authorization": f"Bearer {self._server.key(call.tenant)}"},
        ) as reply:
            yield reply

    def _note(self, call: Call, reply: httpx.Response, seconds: float | None = None) -> None:
        outcome = reply.headers.get("x-semblend-outcome")
        with self._books.lock:
            self._books.statuses[str(reply.status_code)] += 1
            if outcome is not None:
                self._books.outcomes[outcome] += 1
                if seconds is not None:
                    self._books.seconds.setdefault(outcome, []).append(seconds)


class Server:
    """`semblend serve`, with keys, small stores and faults."""

    def __init__(self, folder: Path, *, fault_rate: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.model = MODEL.name
        self.log = folder / "log.jsonl"
        keys = {self.key(tenant): f"tenant-{tenant}" for tenant in range(TENANTS)}
        keys |= {self.key(-1): {"tenant": "ops", "admin": True}}
        (folder / "keys.json").write_text(json.dumps({"keys": keys}))
        environment = {
            **{name: value for name, value in os.environ.items() if "SEMBLEND" not in name},
            "OMP_NUM_THREADS": "1",
            "SEMBLEND_EMBEDDER": "none",
            "SEMBLEND_MAX_DONOR_BYTES": str(4 * 2**20),
            "SEMBLEND_SHADOW_RATE": "0.02",
            "SEMBLEND_FAULTS": ",".join(f"{point}:{fault_rate}" for point in FAULTS)
            if fault_rate
            else "",
        }
        command = [
            *(sys.executable, "-c", "from semblend.cli.main import run; run()", "serve"),
            *(str(MODEL), "--port", str(self.port), "--key-file", str(folder / "keys.json")),
            *("--device", "cpu", "--max-concurrent", "4", "--pool-mib", "160"),
            *("--donor-mib", "48", "--donor-disk-mib", "64"),
            *("--donor-folder", str(folder / "donors")),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)

    def key(self, tenant: int) -> str:
        """A tenant's API key; -1 is the admin's."""
        return f"sk-soak-0123456789-{tenant}"

    def wait(self) -> None:
        """Wait until it accepts requests."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", trust_env=False).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise RuntimeError(f"the server did not start: {self.log.read_text()[-2000:]}")

    def rss(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def gauge(self, name: str) -> float:
        """Read one of its metrics."""
        headers = {"authorization": f"Bearer {self.key(-1)}"}
        text = httpx.get(f"{self.url}/metrics", headers=headers, trust_env=False, timeout=60).text
        line = next(line for line in text.splitlines() if line.startswith(f"semblend:{name} "))
        return float(line.split()[-1])

    def left_behind(self) -> float:
        """Requests still inside a minute after the last client has left."""
        deadline = time.monotonic() + 60
        while True:
            left = self.gauge("running_requests") + self.gauge("queued_requests")
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.5)

    def stop(self) -> int:
        """Ask it to stop; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)

    def troubles(self) -> tuple[int, list[str]]:
        """The number of warnings in the log, and the lines that must never occur."""
        warnings, found = 0, []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                if "Traceback" in line:
                    found.append(line)
                continue
            warnings += record.get("level") == "warning"
            if record.get("level") in ("error", "critical"):
                found.append(line[:1000])
        return warnings, found


def soak(
    server: Server, *, minutes: float, clients: int, sample: float, seed: int
) -> tuple[Books, list[float]]:
    """Drive the server; return what happened and its resident megabytes per second."""
    books, stop, memory = Books(), threading.Event(), []
    traffic = Traffic(tenants=TENANTS, seed=seed)
    crowd = [Client(server, traffic, books, stop, sample) for _ in range(clients)]
    for client in crowd:
        client.start()
    until = time.monotonic() + minutes * 60
    while time.monotonic() < until and server.process.poll() is None:
        memory.append(server.rss() / 2**20)
        time.sleep(1)
    stop.set()
    for client in crowd:
        client.join(timeout=180)
    return books, memory


def growth(memory: list[float]) -> float:
    """Growth of the median from the first to the second half of the time after warm-up."""
    warm = memory[int(len(memory) * _WARM_UP) :]
    first, second = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    return float(np.median(second) / np.median(first) - 1.0)


def report_of(
    books: Books, memory: list[float], *, case: str, command: str, log: list[str]
) -> BenchmarkReport:
    """The figures with their targets."""
    report = BenchmarkReport("soak", command=command)
    failed = sum(n for status, n in books.statuses.items() if status >= "500" and status != "503")
    report.add(case, "requests", sum(books.manners.values()), "requests")
    report.add(case, "answers checked against cold", sum(books.checked.values()), "answers")
    report.add(case, "wrong answers", len(books.wrong), "answers", at_most=0)
    report.add(case, "5xx other than 503", failed, "responses", at_most=0)
    report.add(case, "unexpected replies", len(books.unexpected), "replies", at_most=0)
    report.add(case, "errors in the log", len(log), "lines", at_most=0)
    report.add(case, "resident memory, last", memory[-1], "MiB")
    report.add(case, "memory growth after warm-up", growth(memory), "share", at_most=0.05)
    for group, count in sorted(books.checked.items()):
        report.add(case, f"{group}: checked", count, "answers")
        report.add(case, f"{group}: unlike cold", books.unlike[group], "answers")
    for outcome, seconds in sorted(books.seconds.items()):
        for share in (50, 95, 99):
            value = float(np.percentile(seconds, share)) * 1e3
            report.add(case, f"{outcome}: p{share}", value, "ms")
    for name, counter in (
        ("outcome", books.outcomes),
        ("status", books.statuses),
        ("caller", books.manners),
    ):
        for key, count in sorted(counter.items()):
            report.add(case, f"{name} {key}", count, "requests")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--faults", type=float, default=0.01, help="share of boundaries that fail")
    parser.add_argument("--sample", type=float, default=0.34, help="share of answers to check")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), fault_rate=options.faults)
        try:
            server.wait()
            books, memory = soak(
                server,
                minutes=options.minutes,
                clients=options.clients,
                sample=options.sample,
                seed=options.seed,
            )
            left = server.left_behind()
            status = server.stop()
        finally:
            if server.process.poll() is None:
                server.process.kill()
        warnings, log = server.troubles()
    command = shlex.join(["python", "-m", "benchmarks.soak", *sys.argv[1:]])
    case = f"{options.minutes:g} minutes, {options.faults:.0%} faults"
    report = report_of(books, memory, case=case, command=command, log=log)
    report.add(case, "warnings in the log: faults met", warnings, "lines")
    report.add(case, "requests left behind", left, "requests", at_most=0)
    report.add(case, "exit status after SIGTERM", status, "", at_most=0)
    for trouble in (*books.wrong, *books.unexpected, *log)[:50]:
        print(trouble, file=sys.stderr)
    report.show(as_json=options.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
