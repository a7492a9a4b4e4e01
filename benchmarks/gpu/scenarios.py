"""Time to first token of one request on an idle card: cold, hits, misses; and decoding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.machine import (
    Ceilings,
    Figure,
    at_least,
    at_most,
    info,
    wall_s,
    wall_times,
)
from benchmarks.gpu.seven_b import (
    OneDonor,
    cold_run,
    hit_plan,
    make_table,
    plan_work,
    random_donor,
    work_of,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from semblend.core.plan import Hole, Plan
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.materialise import layerwise_spans, load_spans
from semblend.engine.model import LoadedModel
from semblend.engine.segmented import compute, runs_of_plan

LENGTHS = (4096, 8192, 16384, 32768)
SHARES = (0.0, 0.05, 0.10, 0.15)
SPANS = (1, 4, 16)
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class _HitCase:
    share: float
    spans: int
    plan: Plan
    tokens: TokenArray
    donor_tokens: TokenArray


def first_token(logits: torch.Tensor) -> int:
    """The token the caller waits for."""
    return int(logits[-1].argmax())


class Bench:
    """A model, a pool with room for one long prompt, and a side stream for loading."""

    def __init__(self, plain: Any, model: LoadedModel, pool: PagedPool, ceilings: Ceilings) -> None:
        self.plain, self.model, self.pool, self.ceilings = plain, model, pool, ceilings
        self.rng = np.random.default_rng(0)
        self.stream = torch.cuda.Stream()
        self.cold_s: dict[int, float] = {}

    def tokens(self, count: int) -> TokenArray:
        """Random token ids."""
        return self.rng.integers(3, 150000, count).astype(np.int32)

    def table(self, tokens: int) -> PageTable:
        """The first pages of the pool, whoever had them before."""
        pages = np.arange(self.pool.pages_for(tokens), dtype=np.int32)
        return PageTable(pages=pages, page_size=self.pool.page_size)

    # -- cold ------------------------------------------------------------------------

    def cold(self, lengths: tuple[int, ...] = LENGTHS) -> list[Figure]:
        """This engine next to plain transformers and the FLOPs."""
        figures = []
        for size in lengths:
            tokens, table = self.tokens(size), self.table(size)
            ours = wall_s(partial(self.compute_cold, tokens, table), repeats=_repeats(size))
            self.cold_s[size] = ours
            flash = self._plain_s(tokens, [SDPBackend.FLASH_ATTENTION])
            default = self._plain_s(tokens, None)
            work = work_of(self.model, size, (Hole(0, size),), 0)
            case = f"cold {size}"
            rate = work.flops / ours / self.ceilings.matrix
            figures += [
                info(case, "ttft", ours * 1e3, "ms"),
                info(case, "plain_flash", flash * 1e3, "ms"),
                info(case, "plain_default_sdpa", default * 1e3, "ms"),
                at_most(case, "of_plain_flash", ours / flash, 1.1),
                info(case, "of_plain_default", ours / default, "ratio"),
                at_least(case, "of_matrix_ceiling", rate, 0.5)
                if size == 16384
                else info(case, "of_matrix_ceiling", rate, "ratio"),
            ]
        return figures

    def compute_cold(self, tokens: TokenArray, table: PageTable) -> int:
        """A cold prefill by this engine."""
        return first_token(compute(self.model, self.pool, cold_run(tokens, table)))

    @torch.inference_mode()
    def _plain_s(self, tokens: TokenArray, backends: list[SDPBackend] | None) -> float:
        ids = torch.from_numpy(tokens.astype(np.int64)).cuda()[None]
        with sdpa_kernel(backends) if backends else nullcontext():
            return wall_s(
                lambda: first_token(self.plain(ids, use_cache=True, logits_to_keep=1).logits[0]),
                repeats=_repeats(len(tokens)),
            )

    # -- hits ------------------------------------------------------------------------

    def hits(
        self,
        lengths: tuple[int, ...] = LENGTHS,
        shares: tuple[float, ...] = SHARES,
        spans: tuple[int, ...] = SPANS,
    ) -> list[Figure]:
        """Every length, share, number of spans and place of the donor."""
        return [figure for size in lengths for figure in self._hits_of(size, shares, spans)]

    def _hits_of(
        self, size: int, shares: tuple[float, ...], spans: tuple[int, ...]
    ) -> list[Figure]:
        """Hits of one length, with every case in each of several rounds.

        A host that is busy for some seconds then costs a case one round, not its figure.
        """
        donors = {
            place: random_donor(self.model, self.tokens(size - 64), on_host=place == "host")
            for place in ("device", "host")
        }
        cases = [
            _HitCase(share, count, *hit_plan(size, count, share, self.rng))
            for share in shares
            for count in spans
        ]
        times: dict[tuple[int, str], list[float]] = {}
        for _ in range(ROUNDS):
            for number, case in enumerate(cases):
                for place, held in donors.items():
                    held.donor.tokens[:] = case.donor_tokens
                    run = self.hit_call(
                        case.plan, case.tokens, self.table(size), held, on_host=place == "host"
                    )
                    measured = wall_times(run, repeats=5 if size <= 16384 else 3)
                    times.setdefault((number, place), []).extend(measured)
        del donors
        torch.cuda.empty_cache()
        figures: list[Figure] = []
        for number, case in enumerate(cases):
            seconds = {
                place: float(np.median(times[number, place])) for place in ("device", "host")
            }
            figures += self._hit_figures(size, case, seconds)
        return figures

    def _hit_figures(self, size: int, hit: _HitCase, seconds: dict[str, float]) -> list[Figure]:
        work, figures = plan_work(self.model, hit.plan), []
        for place, taken in seconds.items():
            floor = work.floor_s(self.ceilings, on_host=place == "host")
            case = f"hit {size} {hit.share:.0%} {hit.spans} spans {place}"
            figures += [
                info(case, "ttft", taken * 1e3, "ms"),
                info(case, "floor", floor * 1e3, "ms"),
            ]
            held_to = place == "device" and size >= 8192 and hit.share > 0
            figures.append(
                at_most(case, "of_floor", taken / floor, 1.5)
                if held_to
                else info(case, "of_floor", taken / floor, "ratio")
            )
            speedup = self.cold_s[size] / taken
            limit = {0.05: 9.0, 0.15: 5.0}.get(hit.share) if size == 32768 else None
            figures.append(
                info(case, "speedup", speedup, "x")
                if limit is None or place == "host"
                else at_least(case, "speedup", speedup, limit, "x")
            )
        over = seconds["host"] / seconds["device"]
        figures.append(
            at_most(case, "of_device", over, 1.3)
            if hit.share > 0
            else info(case, "of_device", over, "ratio")
        )
        return figures

    def hit_call(
        self, plan: Plan, tokens: TokenArray, table: PageTable, donor: OneDonor, *, on_host: bool
    ) -> Callable[[], int]:
        """From a plan to the first token."""
        together: dict[str, Any] = {
            "table": table,
            "pool": self.pool,
            "rotary": self.model.rotary,
            "donors": donor,
        }

        def from_device() -> int:
            load_spans(plan, tokens, **together)
            return first_token(compute(self.model, self.pool, runs_of_plan(plan, tokens, table)))

        def from_host() -> int:
            with layerwise_spans(plan, tokens, stream=self.stream, **together) as load:
                runs = runs_of_plan(plan, tokens, table)
                return first_token(compute(self.model, self.pool, runs, before_layer=load))

        return from_host if on_host else from_device

    # -- decoding ----------------------------------------------------------------------

    def decode(self, requests: tuple[int, ...] = (1, 16), context: int = 4096) -> list[Figure]:
        """Tokens per second after cold prompts and after hits, by graph and launched."""
        figures = []
        plan, tokens, donor_tokens = hit_plan(context, 4, 0.05, self.rng)
        donor = random_donor(self.model, donor_tokens, on_host=False)
        for count in requests:
            tables = [make_table(self.pool, context + 128) for _ in range(count)]
            # In turn, so that neither kind gets the warmer card.
            times: dict[str, list[float]] = {"cold": [], "hit": []}
            for _ in range(3):
                for kind, measured in times.items():
                    for table in tables:
                        if kind == "cold":
                            self.compute_cold(tokens, table)
                        else:
                            self.hit_call(plan, tokens, table, donor, on_host=False)()
                    measured.append(self._decode_s(tables, context))
            seconds = {kind: float(np.median(measured)) for kind, measured in times.items()}
            eager = self._decode_s(tables, context, replay=False)
            for table in tables:
                self.pool.allocator.release(table.pages)
            case = f"decode {count} x {context}"
            figures += [
                info(case, "tokens_per_s_cold", count / seconds["cold"], "tokens/s"),
                info(case, "tokens_per_s_hit", count / seconds["hit"], "tokens/s"),
                info(case, "tokens_per_s_launched", count / eager, "tokens/s"),
                at_least(case, "hit_of_cold", seconds["cold"] / seconds["hit"], 0.98),
            ]
        return figures

    def _decode_s(self, tables: list[PageTable], context: int, *, replay: bool = True) -> float:
        """Seconds per step, over 48 steps."""

        def steps() -> None:
            ids = np.full(len(tables), 11, dtype=np.int32)
            for step in range(48):
                runs = [
                    ComputeRun(
                        tokens=ids[n : n + 1], start=context + step, table=table, logit_rows=1
                    )
                    for n, table in enumerate(tables)
                ]
                logits = compute(self.model, self.pool, runs, replay=replay)
                ids = logits.argmax(-1).int().cpu().numpy()

        return wall_s(steps, repeats=3) / 48


def _repeats(size: int) -> int:
    return 3 if size > 16384 else 5
