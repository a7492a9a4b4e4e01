"""Cross-tenant probing through timing, carried out as an attack on the real engine.

    python -m benchmarks.timing_attack --json
    python -m benchmarks.timing_attack --tiers disk --trials 2000 --progress attack.jsonl

A victim sends a prompt with a secret. The attacker, another tenant, sends two prompts in random
order: one with the secret (a right guess) and one with as many other tokens (a wrong guess), and
measures the time to first token of each. The figure is the AUC of telling right guesses from
wrong ones by that time, and by its difference to the other prompt's, which removes the machine's
drift; the attacker may flip the sign. Each tier is attacked with separate tenants, where the AUC
must stay near one half, and with both as one tenant, where the attack must succeed: otherwise it
proves nothing.

The model is tiny and random, so that the engine's own work dominates. Trials favor the attacker:
the victim's K/V is stored before the probe, and there is no other traffic.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.engine_soak import VOCABULARY, tiny_model
from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest, SamplingParams, TokenEvent
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.model import LoadedModel
from semblend.engine.options import EngineOptions

SECRET_TOKENS = 384
OPENING_TOKENS = 24
TIERS = ("prefix", "device", "host", "disk")
MOST_WITH_ISOLATION = 0.52
LEAST_WITHOUT = 0.75
"""For the better of the two figures, because a busy machine blurs the time alone."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds to the first token, one row per trial: right guess, wrong guess."""

    tier: str
    isolated: bool
    times: Times

    @property
    def case(self) -> str:
        """What was attacked."""
        return f"{self.tier}, {'tenants apart' if self.isolated else 'one tenant'}"

    def auc(self) -> float:
        """AUC of the time alone."""
        return _auc(self.times[:, 0], self.times[:, 1])

    def auc_without_drift(self) -> float:
        """AUC of the time minus the same trial's other time."""
        difference = self.times[:, 0] - self.times[:, 1]
        return _auc(difference, -difference)


class Attack:
    """One engine under attack through one tier."""

    def __init__(
        self, model: LoadedModel, tier: str, *, isolated: bool, folder: Path, seed: int
    ) -> None:
        self._tier = tier
        self._engine = _engine(model, tier, folder)
        self._numbers = np.random.default_rng(seed)
        self._victim = self._engine.namespace(tenant="victim")
        self._attacker = self._engine.namespace(tenant="attacker" if isolated else "victim")
        self._serial = 0

    def run(self, trials: int) -> Times:
        """Times of `trials` trials, shape [trials, 2]."""
        for _ in range(min(50, trials)):
            self._trial()
        return np.asarray([self._trial() for _ in range(trials)])

    def close(self) -> None:
        self._engine.close()

    def _trial(self) -> tuple[float, float]:
        secret, wrong = self._text(SECRET_TOKENS), self._text(SECRET_TOKENS)
        self._send(secret, victim=True)
        if self._tier == "disk":
            # Another prompt of the victim pushes the secret out of memory.
            self._engine.donors.wait()
            self._send(self._text(SECRET_TOKENS), victim=True)
        self._engine.donors.wait()
        if self._numbers.random() < 0.5:
            right_s = self._probe(secret)
            return right_s, self._probe(wrong)
        wrong_s = self._probe(wrong)
        return self._probe(secret), wrong_s

    def _probe(self, guess: TokenArray) -> float:
        """The attacker's prompt; a prefix is guessed from its start, a document anywhere."""
        if self._tier == "prefix":
            return self._send(np.concatenate((guess, self._text(OPENING_TOKENS))), victim=False)
        return self._send(np.concatenate((self._text(OPENING_TOKENS), guess)), victim=False)

    def _send(self, tokens: TokenArray, *, victim: bool) -> float:
        self._serial += 1
        request = GenerationRequest(
            request_id=f"r{self._serial}",
            tokens=tokens,
            namespace=self._victim if victim else self._attacker,
            sampling=SamplingParams(max_tokens=1),
            donate=victim,
        )
        first = 0.0
        started = time.perf_counter()
        for event in self._engine.submit(request).events():
            if isinstance(event, TokenEvent):
                first = time.perf_counter() - started
        return first

    def _text(self, tokens: int) -> TokenArray:
        return self._numbers.integers(3, VOCABULARY, tokens).astype(np.int32)


def _engine(model: LoadedModel, tier: str, folder: Path) -> EmbeddedEngine:
    token = model.kv_shape.token_bytes
    room = 64 * SECRET_TOKENS * token
    segment = SECRET_TOKENS * token + 4096
    options = EngineOptions(
        device="cpu",
        pool_bytes=room,
        prefix_cache=tier == "prefix",
        device_donor_bytes=room if tier == "device" else 0,
        # On disk: memory for only one prompt.
        host_donor_bytes=segment if tier == "disk" else room,
        disk_donor_bytes=room if tier == "disk" else 0,
        donor_folder=folder if tier == "disk" else None,
        step_tokens=1024,
    )
    settings = Settings(
        enabled=tier != "prefix",
        embedder=EmbedderKind.NONE,
        allow_uncertified=True,
        recompute_policy="none",
        shadow_rate=0.0,
    )
    return EmbeddedEngine(model, options=options, settings=settings)


def _auc(right: Times, wrong: Times) -> float:
    """Chance of telling a right guess from a wrong one, with the better sign."""
    order = np.argsort(np.concatenate((right, wrong)), kind="stable")
    ranks = np.empty(order.size)
    ranks[order] = np.arange(1, order.size + 1)
    above = ranks[: right.size].sum() - right.size * (right.size + 1) / 2
    area = above / (right.size * wrong.size)
    return float(max(area, 1.0 - area))


def attack(
    tiers: Iterable[str], *, trials: int, open_trials: int, seed: int, progress: Path | None
) -> list[Measured]:
    """Attack every tier with separate tenants and as one, except what `progress` already has."""
    done = _read(progress)
    model = tiny_model()
    for tier in tiers:
        for isolated in (True, False):
            if any(m.tier == tier and m.isolated is isolated for m in done):
                continue
            with tempfile.TemporaryDirectory() as folder:
                attacking = Attack(model, tier, isolated=isolated, folder=Path(folder), seed=seed)
                times = attacking.run(trials if isolated else open_trials)
                attacking.close()
            done.append(Measured(tier=tier, isolated=isolated, times=times))
            if progress is not None:
                with progress.open("a", encoding="utf-8") as file:
                    row = {"tier": tier, "isolated": isolated, "times": times.tolist()}
                    file.write(json.dumps(row) + "\n")
    return done


def _read(progress: Path | None) -> list[Measured]:
    if progress is None or not progress.exists():
        return []
    rows = (json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines())
    return [
        Measured(tier=row["tier"], isolated=row["isolated"], times=np.asarray(row["times"]))
        for row in rows
    ]


def report_of(measured: Iterable[Measured], command: str) -> BenchmarkReport:
    """The figures with their targets."""
    report = BenchmarkReport("timing attack", command=command)
    for each in measured:
        report.add(each.case, "trials an arm", len(each.times), "trials")
        plain, paired = each.auc(), each.auc_without_drift()
        if each.isolated:
            most = MOST_WITH_ISOLATION
            report.add(each.case, "AUC of time to first token", plain, "AUC", at_most=most)
            report.add(each.case, "AUC, drift taken away", paired, "AUC", at_most=most)
        else:
            best = max(plain, paired)
            report.add(each.case, "AUC, the better of both", best, "AUC", at_least=LEAST_WITHOUT)
        for column, guess in ((0, "right"), (1, "wrong")):
            median_ms = float(np.median(each.times[:, column])) * 1e3
            report.add(each.case, f"median, {guess} guess", median_ms, "ms")
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiers", default=",".join(TIERS), help=f"some of {', '.join(TIERS)}")
    parser.add_argument("--trials", type=int, default=5000, help="per arm, separate tenants")
    parser.add_argument("--open-trials", type=int, default=2000, help="per arm, one tenant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--progress", type=Path, help="file to resume from and append to")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tiers = arguments.tiers.split(",")
    unknown = set(tiers) - set(TIERS)
    if unknown:
        parser.error(f"--tiers: expected {', '.join(TIERS)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    measured = attack(
        tiers,
        trials=arguments.trials,
        open_trials=arguments.open_trials,
        seed=arguments.seed,
        progress=arguments.progress,
    )
    command = shlex.join(["python", "-m", "benchmarks.timing_attack", *sys.argv[1:]])
    report = report_of(measured, command)
    report.show(as_json=arguments.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
