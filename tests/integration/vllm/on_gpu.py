"""What the CPU tests prove, seen on a GPU: bfloat16, FlashAttention, CUDA graphs, every runner.

    python -m tests.integration.vllm.on_gpu                                  all four in turn
    python -m tests.integration.vllm.on_gpu --runner v2 --scheduling async   one of them
    python -m tests.integration.vllm.on_gpu ... --engine lora                with --enable-lora
    python -m tests.integration.vllm.on_gpu ... --engine sleep               with sleep mode
    python -m tests.integration.vllm.on_gpu ... --engine awq                 with AWQ weights
    python -m tests.integration.vllm.on_gpu ... --engine fp8_kv              with an fp8 K/V cache

Needs no pytest. A configuration is chosen for a whole process, so each runs in one of its own; its
engine starts once. Exits with 1 where a check finds something. Without a GPU the same checks run
in float32, which is how they are tried out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.engine_fuzz.comparing import Answer, Comparison
from benchmarks.vllm_fuzz.answers import answer_of
from benchmarks.vllm_runners import Runner, Scheduling, engine_options, on_gpu, prepare

CONFIGURATIONS = tuple(itertools.product(Runner, Scheduling))
FAULTS = ("nested_pass:1:1", "copy:1:1", "lease:1:1", "checksum:1:1", "tier_read:1:1")
WORKLOADS = ("composed", "edited_exchanged", "reordered", "instruction")
OFF = {"reuse": False, "capture": False}
DONATE = {"reuse": False}
TOKENS = 12


class Kind(StrEnum):
    """What else an engine is asked for."""

    PLAIN = "plain"
    LORA = "lora"
    SLEEP = "sleep"
    AWQ = "awq"
    GPTQ = "gptq"
    INT8 = "int8"
    FP8 = "fp8"
    """A checkpoint of fp8 weights."""
    FP8_AT_START = "fp8_at_start"
    """Plain weights that vLLM makes fp8 of as it loads them."""
    FP8_KV = "fp8_kv"
    """Plain weights, an fp8 K/V cache at scale 1."""
    FP8_HEADS = "fp8heads"
    """fp8 weights, and a scale of the K/V cache a head."""


ENGINES: dict[Kind, dict[str, Any]] = {
    Kind.PLAIN: {},
    Kind.LORA: {"enable_lora": True, "max_loras": 2},
    Kind.SLEEP: {"enable_sleep_mode": True},
    Kind.FP8_KV: {"kv_cache_dtype": "fp8"},
    Kind.FP8_HEADS: {"kv_cache_dtype": "fp8"},
    Kind.FP8_AT_START: {"quantization": "fp8_per_tensor" if on_gpu() else "fp8_per_channel"},
}
STORED = (Kind.AWQ, Kind.GPTQ, Kind.INT8, Kind.FP8, Kind.FP8_HEADS)
"""Kinds whose weights are stored quantised; `tests.integration.quantised` writes them."""
QUANTISED = (*STORED, Kind.FP8_AT_START)


class Harness:
    """One engine on the bundled model, and ways to ask it."""

    def __init__(self, runner: Runner, scheduling: Scheduling, kind: Kind) -> None:
        from tests.integration.vllm.engines import Engine

        self.runner, self.scheduling = runner, scheduling
        device: dict[str, Any] = {"max_model_len": 4096, "kv_cache_memory_bytes": 256 << 20}
        if on_gpu():
            device |= {"dtype": "bfloat16", "enforce_eager": False, "block_size": 16}
            device["gpu_memory_utilization"] = 0.2
        if kind in QUANTISED:
            device["dtype"] = "bfloat16"  # kernels of quantised weights take no float32
        device |= ENGINES.get(kind, {}) | engine_options(scheduling)
        model = f"reference-{kind}" if kind in STORED else "reference"
        self.engine = Engine(model, engine=device)
        self.rounded = device.get("dtype") == "bfloat16"
        # A number that bfloat16 rounds differently may be one step of fp8 away.
        coarse = "kv_cache_dtype" in device
        self.tokenizer: Any = self.engine.llm.get_tokenizer()
        self.comparison = Comparison(margin=0.25 if self.rounded else 1e-3)
        self.kv_limit = 0.04 if coarse else 0.02 if self.rounded else 1e-4
        """How far K/V may be from cold's."""
        self.block_size = int(self.engine.scheduler.setup.block_size)
        self._salts = itertools.count()
        if kind in QUANTISED:
            self._measure_rounding()

    def salt(self) -> str:
        """One that nobody has used."""
        return f"on-gpu-{next(self._salts)}"

    def ask(self, prompts: list[Any], hints: list[dict[str, Any]], salt: str) -> list[Answer]:
        """Prompts in one batch, each with its hints."""
        from tests.integration.vllm.engines import Engine

        inputs = [{"prompt_token_ids": p.tolist(), "cache_salt": salt} for p in prompts]
        plans = [Engine.sampling(hints=h, max_tokens=TOKENS, logprobs=8) for h in hints]
        outputs = self.engine.llm.generate(inputs, plans, use_tqdm=False)
        self.engine.drain()
        return [answer_of(output) for output in outputs]

    def cold(self, tokens: Any) -> Answer:
        """The prompt alone, computed."""
        (answer,) = self.ask([tokens], [OFF], self.salt())
        return answer

    def unlike(self, answer: Answer, reference: Answer, what: str) -> list[str]:
        """What is wrong with an answer, if anything is."""
        found = self.comparison.difference(answer.tokens, reference)
        return [] if found is None else [f"{what}: {found}; said {answer.said}"]

    def item(self, number: int, length: int = 1024) -> Any:
        """An item of the quality workloads."""
        from semblend.quality.items import to_item
        from semblend.quality.suite import Cell

        workload = WORKLOADS[number % len(WORKLOADS)]
        cell = Cell(workload=workload, items=1, specs=(), lengths=(length,), first=number)
        (case,) = cell.cases(47)
        return to_item(case, self.tokenizer)

    def _measure_rounding(self) -> None:
        """Set the limits by how far cold is from cold in another batch and in other chunks.

        Activations are quantised by a scale of the whole batch, so other batches round otherwise.
        """
        prompts = [self.item(70 + number).tokens for number in range(8)]
        alone = [self.cold(tokens) for tokens in prompts]
        together = self.ask(prompts, [OFF] * len(prompts), self.salt())
        wobble = max(_wobble(one, other) for one, other in zip(alone, together, strict=True))
        self.comparison = Comparison(margin=max(self.comparison.margin, 2 * wobble))
        engine, tokens = self.engine, prompts[0]
        whole = engine.kv(engine.cold(tokens), 0, len(tokens))
        salt = self.salt()
        engine.run(tokens[: len(tokens) // 2], salt=salt, hints=OFF)
        chunked = engine.kv(engine.run(tokens, salt=salt, hints=OFF), 0, len(tokens))
        noise = _apart(chunked, whole)
        self.kv_limit = max(self.kv_limit, 2 * noise)
        print(f"cold is {wobble:.2f} nats and {noise:.2%} from cold", file=sys.stderr, flush=True)
        if wobble > 1.5 or noise > 0.1:
            raise RuntimeError("cold is so far from cold that nothing could be told here")

    def forget(self) -> None:
        """No donors and no prefixes."""
        self.engine.forget_donors()
        self.engine.forget_prefixes()


def contract(harness: Harness) -> list[str]:
    """vLLM is the version its contract was recorded for, in the configuration asked for."""
    import vllm

    from semblend.integration.vllm.versions import VERSIONS
    from tests.integration.vllm.contract import read_contract

    core = harness.engine.llm.llm_engine.engine_core.engine_core
    runner = type(core.model_executor.driver_worker.worker.model_runner).__module__
    found = []
    if (".gpu." in runner or ".cpu." in runner) != (harness.runner is Runner.V2):
        found.append(f"the runner is {runner}")
    if core.async_scheduling != (harness.scheduling is Scheduling.ASYNC):
        found.append(f"asynchronous scheduling is {core.async_scheduling}")
    path = Path(__file__).parent / "contracts" / f"{VERSIONS.release_of(vllm.__version__)}.json"
    if json.loads(path.read_text()) != read_contract(Path(vllm.__file__).parent):
        found.append(f"vLLM's contract is not the one recorded in {path.name}")
    return found


def all_holes(harness: Harness) -> list[str]:
    """A region that is all holes equals cold, in K/V and in the answer."""
    from semblend.core.plan import Hole

    engine, item = harness.engine, harness.item(3)
    engine.donate(item.donors[0])
    expected = engine.kv(engine.cold(item.tokens), 0, len(item.tokens))
    engine.rewrite = lambda plan, tokens: (
        replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))
        if plan.spans
        else plan
    )
    try:
        warm = engine.run(item.tokens)
    finally:
        engine.rewrite = None
    load = engine.scheduler_connector.loads[-1]
    found = [] if load.hole_tokens > 500 else [f"only {load.hole_tokens} tokens were holes"]
    off = _apart(engine.kv(warm, 0, len(item.tokens)), expected)
    if off > harness.kv_limit:
        found.append(f"K/V is {off:.2%} off cold's")
    cold = harness.cold(item.tokens)
    return found + harness.unlike(
        Answer(tokens=warm.tokens, likely=()), cold, "the answer over holes alone"
    )


def adapters(harness: Harness) -> list[str]:
    """Holes under an adapter are the adapter's, and its donors serve nobody else."""
    from vllm.lora.request import LoRARequest

    from semblend.core.plan import Hole
    from tests.integration.vllm.lora_adapters import write_adapter

    engine, item = harness.engine, harness.item(5)
    with tempfile.TemporaryDirectory() as folder:
        write_adapter(Path(folder), "reference", seed=181)
        lora = LoRARequest("random", 1, folder)
        cold = engine.cold(item.tokens, lora=lora)
        expected = engine.kv(cold, 0, len(item.tokens))
        base = engine.kv(engine.cold(item.tokens), 0, len(item.tokens))
        engine.donate(item.donors[0], lora=lora)
        stolen = engine.run(item.tokens, hints={"capture": False}).semblend["reused_tokens"]
        engine.forget_prefixes()
        reused = engine.run(item.tokens, lora=lora, hints={"capture": False}).semblend
        engine.forget_prefixes()
        engine.scheduler_connector.rewrite_load = lambda load: replace(
            load, copies=(), holes=(Hole(load.start, load.end),)
        )
        try:
            warm = engine.run(item.tokens, lora=lora, hints={"capture": False})
        finally:
            engine.scheduler_connector.rewrite_load = None
    found = []
    if stolen:
        found.append(f"the base model reused {stolen} tokens of an adapter")
    if not reused["reused_tokens"]:
        found.append(f"nothing was reused under the adapter: {reused}")
    off = _apart(engine.kv(warm, 0, len(item.tokens)), expected)
    if off > harness.kv_limit:
        found.append(f"K/V is {off:.2%} off cold's under the adapter")
    if _apart(base, expected) < 2 * harness.kv_limit:
        found.append("the adapter changes less than rounding does: this check could not fail")
    return found


def float64(harness: Harness) -> list[str]:
    """Holes are what an independent float64 model computes, as near as cold is to it."""
    from tests.integration.models import plain_model
    from tests.oracles.attention import lent_to, segmented_forward

    engine, item = harness.engine, harness.item(7, 512)
    model, tokens = plain_model("reference"), item.tokens
    theta = model.config.rope_parameters["rope_theta"]
    exact = _both(segmented_forward(model, tokens))
    noise = _apart(engine.kv(engine.cold(tokens), 0, len(tokens)), exact)
    donor = engine.donate(item.donors[0])
    lent = engine.kv(donor, 0, len(item.donors[0])).double().cpu()
    warm = engine.run(tokens)
    load = engine.scheduler_connector.loads[-1]
    borrowed = lent_to(load.copies, {span.donor_id: lent for span in load.copies}, theta)
    expected = _both(segmented_forward(model, tokens, borrowed))
    off = _apart(engine.kv(warm, 0, len(tokens)), expected)
    found = []
    if not load.copies or not load.holes:
        found.append("nothing was copied, or nothing computed")
    if off > 2 * noise + 1e-4:
        found.append(f"{off:.3%} off the reference, where cold is {noise:.3%} off its own")
    if _apart(expected, exact) < 2 * off:
        found.append("reuse changes less than rounding does: this check could not fail")
    return found


def prefix_hashes(harness: Harness) -> list[str]:
    """Approximate blocks are never found under exact hashes; the exact head stays public."""
    from vllm.v1.request import Request

    engine, item = harness.engine, harness.item(11)
    core = engine.llm.llm_engine.engine_core.engine_core
    request = Request(
        request_id="hashes",
        prompt_token_ids=item.tokens.tolist(),
        sampling_params=engine.sampling(),
        pooling_params=None,
        block_hasher=core.request_block_hasher,
    )
    engine.donate(item.donors[0])
    warm = engine.run(item.tokens, hints={"capture": False})
    pool = engine.core.kv_cache_manager.block_pool
    known = {block.block_hash[:32] for block in pool.blocks if block.block_hash is not None}
    first = engine.scheduler_connector.loads[-1].copies[0].target_start // harness.block_size
    public = [bytes(each) in known for each in request.block_hashes]
    found = [] if warm.semblend.get("approximate") else ["nothing was reused"]
    if any(public[first:]):
        found.append(f"{sum(public[first:])} approximate blocks are public")
    if not all(public[:first]):
        found.append("the exact head is not public")
    return found


def scheduling(harness: Harness) -> list[str]:
    """A batch of reusing, missing and computed requests answers as each alone."""
    items = [harness.item(number) for number in range(8)]
    salt, hints = harness.salt(), {"capture": False}
    for item in items:
        for donor in item.donors:
            harness.ask([donor], [DONATE], salt)
    prompts = [item.tokens for item in items]
    alone = [harness.ask([prompt], [hints], salt)[0] for prompt in prompts]
    harness.engine.forget_prefixes()
    together = harness.ask(prompts, [hints] * len(prompts), salt)
    found = [] if any(a.said.get("outcome") == "materialised" for a in together) else ["no reuse"]
    for number, (answer, reference) in enumerate(zip(together, alone, strict=True)):
        found += harness.unlike(answer, reference, f"prompt {number} in a batch")
    return found


def faults(harness: Harness) -> list[str]:
    """A load that fails ends as cold, and nobody beside it notices."""
    from semblend.core.faults import planted

    found = []
    others = [harness.item(100 + number, 512).tokens for number in range(3)]
    expected = [harness.cold(tokens) for tokens in others]
    tiers = harness.engine.worker.donors.tiers
    for fault, number in itertools.product(FAULTS, range(len(WORKLOADS))):
        item, salt = harness.item(20 + number), harness.salt()
        cold = harness.cold(item.tokens)
        for donor in item.donors:
            harness.ask([donor], [DONATE], salt)
        harness.engine.forget_prefixes()
        hints = [OFF] * len(others) + [{"capture": False}]
        with planted(fault) as fired:
            *beside, answer = harness.ask([*others, item.tokens], hints, salt)
        if not fired.fired:
            found.append(f"{fault} was never reached")
        if leased := sum(tier.leased for tier in tiers.stats()):
            found.append(f"{leased} leases are left behind {fault}")
        found += harness.unlike(answer, cold, f"{fault}, {item.case.workload}")
        for other, reference in zip(beside, expected, strict=True):
            found += harness.unlike(other, reference, f"beside {fault}")
    return found


def poisoned_donor(harness: Harness) -> list[str]:
    """Whoever hits blocks of a load that fails is not captured with what they did not hold."""
    from semblend.core.faults import planted

    found = []
    for number in range(4):
        tokens, salt = harness.item(60 + number).tokens, harness.salt()
        start, tail = tokens[:-12], tokens[-12:]
        first = np.concatenate([start, np.array([50, 51, 52], dtype=np.int32)])
        second = np.concatenate([start, np.array([60, 61, 62, 63], dtype=np.int32), tail])
        harness.ask([tokens], [DONATE], salt)
        harness.engine.forget_prefixes()
        with planted("lease:1:1"):
            harness.ask([first, second], [{}, {}], salt)
        harness.engine.forget_prefixes()
        later = np.concatenate([second, np.array([9], dtype=np.int32), tail])
        (warm,) = harness.ask([later], [{"capture": False}], salt)
        found += harness.unlike(warm, harness.cold(later), f"later prompt {number}")
    return found


def many_holes(harness: Harness) -> list[str]:
    """More holes than the attention backend's buffers were made for are computed all the same."""
    from tests.integration.vllm.probe import chopped

    engine, item = harness.engine, harness.item(3, 2048)
    engine.donate(item.donors[0])
    hints = {"policy": "random(0.6)", "capture": False}
    written = {}
    for rewrite in (None, chopped):
        engine.scheduler_connector.rewrite_load = rewrite
        answer = engine.run(item.tokens, hints=hints)
        written[rewrite] = engine.kv(answer, 0, len(item.tokens))
        engine.forget_prefixes()
    engine.scheduler_connector.rewrite_load = None
    holes, most = len(engine.scheduler_connector.loads[-1].holes), engine.worker.nested.limits
    found = [] if holes > most.sequences else [f"{holes} holes fit into {most}"]
    off = _apart(written[chopped], written[None])
    if off > (0.02 if on_gpu() else 1e-4):
        found.append(f"K/V of one-token holes is {off:.2%} off that of whole ones")
    return found


def conversation(harness: Harness) -> list[str]:
    """A conversation continues its own K/V, alone, and idle steps make it exact."""
    engine, item, salt, found = harness.engine, harness.item(3), harness.salt(), []
    for donor in item.donors:
        harness.ask([donor], [DONATE], salt)
    (first,) = harness.ask([item.tokens], [{}], salt)
    new = np.array([60, 61, 62, 63, 64], dtype=np.int32)
    second = np.concatenate([item.tokens, np.array(first.tokens, dtype=np.int32), new])
    (stranger,) = harness.ask([np.concatenate([item.tokens, new])], [{"capture": False}], salt)
    if stranger.said.get("continued_tokens"):
        found.append(f"somebody else continues it: {stranger.said}")
    promotions, engine.scheduler.promotions = engine.scheduler.promotions, None
    (alone,) = harness.ask([second], [{"capture": False}], salt)
    engine.scheduler.promotions = promotions
    (continued,) = harness.ask([second], [{}], salt)
    left = len(second) - continued.said["exact_tokens"] - continued.said["continued_tokens"]
    if continued.said.get("outcome") != "continued" or left > harness.block_size + len(new) + 1:
        found.append(f"it does not continue: {continued.said}")
    found += harness.unlike(continued, alone, "the same turn again")
    third = np.concatenate([second, np.array(continued.tokens, dtype=np.int32), new])
    (exact,) = harness.ask([third], [{"capture": False}], salt)
    if exact.said.get("outcome") != "exact_prefix" or len(engine.scheduler.chains):
        found.append(f"it was not promoted: {exact.said}")
    return found + harness.unlike(exact, harness.cold(third), "after the promotion")


def new_weights(harness: Harness) -> list[str]:
    """Weights that are loaded anew end reuse, and nothing computed before is a donor."""
    engine, item = harness.engine, harness.item(3)
    engine.donate(item.donors[0])
    cold = harness.cold(item.tokens)
    engine.llm.collective_rpc("reload_weights")
    (answer,) = harness.ask([item.tokens], [{}], harness.salt())
    found = harness.unlike(answer, cold, "after the weights were loaded anew")
    if len(engine.worker.donors) or answer.said.get("reused_tokens"):
        found.append(f"{len(engine.worker.donors)} donors of the old weights; said {answer.said}")
    return found


def sleeping(harness: Harness) -> list[str]:
    """A nap while prompts are being captured, and one while nothing is going on."""
    engine, found = harness.engine, []
    for number in range(2):
        item, salt = harness.item(number), harness.salt()
        cold = harness.cold(item.tokens)
        prompts = [{"prompt_token_ids": d.tolist(), "cache_salt": salt} for d in item.donors]
        engine.llm.generate(prompts, engine.sampling(hints=DONATE, max_tokens=1), use_tqdm=False)
        engine.llm.sleep(level=1)
        engine.llm.wake_up()
        (answer,) = harness.ask([item.tokens], [{"capture": False}], salt)
        found += harness.unlike(answer, harness.cold(item.tokens), f"item {number}, after a nap")
        found += harness.unlike(harness.cold(item.tokens), cold, f"item {number}, cold")
    return found


CHECKS: dict[Kind, tuple[Callable[[Harness], list[str]], ...]] = {
    Kind.PLAIN: (
        contract,
        all_holes,
        float64,
        many_holes,
        prefix_hashes,
        scheduling,
        faults,
        poisoned_donor,
        conversation,
        new_weights,  # the last: nothing is reused behind it
    ),
    Kind.LORA: (all_holes, adapters, scheduling, faults),
    Kind.SLEEP: (sleeping, scheduling),
    Kind.FP8_KV: (all_holes, float64, prefix_hashes, scheduling, faults),
    **dict.fromkeys(QUANTISED, (all_holes, prefix_hashes, scheduling, faults)),
}


def _both(result: Any) -> Any:
    import torch

    return torch.stack([result.keys, result.values], dim=1)


def _wobble(one: Answer, other: Answer) -> float:
    """How far the two likeliest tokens' log-probabilities are apart, up to where answers part."""
    most = 0.0
    for place, (a, b) in enumerate(zip(one.likely, other.likely, strict=False)):
        likeliest = sorted(a, key=a.__getitem__, reverse=True)[:2]
        most = max([most, *(abs(a[token] - b[token]) for token in likeliest if token in b)])
        if one.tokens[place] != other.tokens[place]:
            break
    return most


def _apart(got: Any, expected: Any) -> float:
    """Relative distance of two tensors of K/V."""
    got, expected = got.double().cpu(), expected.double().cpu()
    return float((got - expected).norm() / expected.norm())


def run(runner: Runner, scheduling: Scheduling, kind: Kind) -> dict[str, list[str]]:
    """Every check in this process: its name, and what it found."""
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        SEMBLEND_SHADOW_RATE="0",
        SEMBLEND_MEASURE_SPEED="0",
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    prepare(runner, scheduling)
    harness = Harness(runner, scheduling, kind)
    found: dict[str, list[str]] = {}
    for check in CHECKS[kind]:
        harness.forget()
        try:
            found[check.__name__] = check(harness)
        except Exception as error:
            found[check.__name__] = [f"{type(error).__name__}: {error}"]
        print(check.__name__, found[check.__name__][:6] or "ok", file=sys.stderr, flush=True)
    return found


def run_apart(
    runner: Runner, scheduling: Scheduling, kind: Kind = Kind.PLAIN
) -> dict[str, list[str]]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else _NAME]
    command += ["--runner", runner, "--scheduling", scheduling, "--engine", kind, "--json"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3], check=False
    )
    try:
        found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"start": [f"the engine did not start: exit status {done.returncode}"]}
    return found


_NAME = "tests.integration.vllm.on_gpu"


def main() -> int:
    """One configuration here, or all, each in a process."""
    parser = argparse.ArgumentParser(prog=f"python -m {_NAME}", description=__doc__)
    parser.add_argument("--runner", choices=[*Runner])
    parser.add_argument("--scheduling", choices=[*Scheduling])
    parser.add_argument("--engine", choices=[*Kind], default=Kind.PLAIN)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.runner and options.scheduling:
        out, sys.stdout = sys.stdout, sys.stderr
        found = run(Runner(options.runner), Scheduling(options.scheduling), Kind(options.engine))
        sys.stdout = out
        if options.json:
            print(json.dumps(found))
        return int(any(found.values()))
    failed, kind = 0, Kind(options.engine)
    for runner, order in CONFIGURATIONS:
        for check, troubles in run_apart(runner, order, kind).items():
            said = f"{len(troubles)}: {troubles[:3]}" if troubles else "ok"
            print(runner, order, kind, check, said, flush=True)
            failed += bool(troubles)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
