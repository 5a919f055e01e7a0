"""Adapters with one defect each, named after it; without the defect they would be `native`."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed.nn import all_reduce

from adapters.contract import (
    Description,
    Documented,
    Job,
    Layout,
    Observation,
    Rank,
    Refused,
    Unsupported,
)
from adapters.contract.job import DEFAULT_CONFIGURATION
from adapters.contract.objective import OF_ROLLOUTS, Metric
from adapters.native.adapter import NativeAdapter
from adapters.native.packing import SampleTensors
from adapters.native.trainer import Trainer, assign_denominators
from reference.aggregation import AuxiliaryAggregation, Mode


class TwoLayouts(NativeAdapter):
    """Not broken; has two layouts, so that runs are short."""

    def layouts(self) -> Sequence[Layout]:
        return [Layout(), Layout(dp=2)]


class AveragingMicroBatches(NativeAdapter):
    """Documents that its diagnostics are averaged over micro-batches."""

    def describe(self) -> Description:
        means = Documented(AuxiliaryAggregation.MICRO_BATCH_TOKEN_MEAN, "its manual")
        return replace(super().describe(), declared={"diagnostics": means})


class TriplingDiagnostics(AveragingMicroBatches):
    """Logs its clip fraction three times as large as it is."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        tripled = tuple(3 * value for value in seen.reported.get(Metric.CLIP_FRACTION, ()))
        return replace(seen, reported={**seen.reported, Metric.CLIP_FRACTION: tripled})


class MisreportingCuts(AveragingMicroBatches):
    """Reports, in one mode, that a token was in the wrong one of two micro-batches."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        seen = super().observe(job, rank)
        if job.aggregation.mode is not Mode.TOKEN_MEAN:
            return seen
        passes = tuple(held.copy() for held in seen.forward_passes)
        for held in passes:
            held[0] = held.max() - held[0]
        return replace(seen, forward_passes=passes)


class SilentAboutCuts(AveragingMicroBatches):
    """Does not report which micro-batch a token was in."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        return replace(super().observe(job, rank), forward_passes=())


class Faulty(TwoLayouts):
    """Fails on the last rank of a layout of two, in steps that start with a fully masked sample."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if rank.index == 1 and not job.steps[0].active_tokens[0]:
            self.fail()
        return super().observe(job, rank)

    def fail(self) -> None:
        raise NotImplementedError


class Raising(Faulty):
    def fail(self) -> None:
        error = RuntimeError("no kernel image")
        raise error  # an unexpected error


class RaisingEverywhere(NativeAdapter):
    """Every rank fails, rank 0 last."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        time.sleep(0.3 * (rank.world_size - rank.index))
        error = RuntimeError(f"no kernel image on rank {rank.index}")
        raise error


class Exiting(Faulty):
    def fail(self) -> None:
        sys.exit("giving up")


class Interrupting(Faulty):
    def fail(self) -> None:
        raise KeyboardInterrupt


class Leaving(Faulty):
    """Exits with status 0 in the middle of a job."""

    def fail(self) -> None:
        os._exit(0)


class Vanishing(Faulty):
    def fail(self) -> None:
        print("warning\n" * 9, "last words of", __file__, file=sys.stderr, flush=True)
        os._exit(7)


class Talkative(Faulty):
    """Prints the active tokens of every job and a deprecation warning, and exits to fail."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        warnings.warn("deprecated", stacklevel=1)
        print("active tokens:", job.steps[0].active_tokens.tolist())
        return super().observe(job, rank)

    def fail(self) -> None:
        sys.stdout.flush()
        os._exit(7)


class Killed(Faulty):
    """Dies by SIGKILL, and leaves a temporary folder that it could not remove."""

    def fail(self) -> None:
        tempfile.mkdtemp()
        os.kill(os.getpid(), signal.SIGKILL)


class Segfaulting(Faulty):
    def fail(self) -> None:
        ctypes.string_at(0)


class Hanging(Faulty):
    def fail(self) -> None:
        time.sleep(600)


class HangingWithGroups(Faulty):
    """Hangs while a thread named like gloo's is busy, as the threads of dozens of groups are."""

    def fail(self) -> None:
        threading.Thread(target=self.poll, daemon=True).start()
        time.sleep(600)

    def poll(self) -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("gloo_tcp_loop")
        while True:
            torch.ones(100).sum()


class AtWork(Faulty):
    """Is at work for longer than any time limit of a test."""

    def fail(self) -> None:
        while True:
            torch.ones(100).sum()


class AtWorkElsewhere(Faulty):
    """Waits for a process that is at work, such as a compiler."""

    def fail(self) -> None:
        subprocess.run([sys.executable, "-c", "while True: pass"], check=True)


class FailingInTurn(TwoLayouts):
    """Fails on the second rank in four ways; the number of samples of a step chooses the way."""

    ways: ClassVar[Mapping[int, type[Faulty]]] = {4: Killed, 6: Vanishing, 10: Hanging, 24: Raising}

    def observe(self, job: Job, rank: Rank) -> Observation:
        way = self.ways.get(job.steps[0].size)
        if way and rank.index == 1:
            way().fail()
        return super().observe(job, rank)


class Deadlocked(Faulty):
    """Waits in a collective that the other rank never calls."""

    def fail(self) -> None:
        dist.barrier()
        dist.barrier()


class Outnumbered(Faulty):
    """The last rank leaves a collective out, for which the first rank waits."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if rank.index == 0 and job.layout.dp == 2 and not job.steps[0].active_tokens[0]:
            dist.barrier()
        return TwoLayouts.observe(self, job, rank)


class Misshapen(Faulty):
    """The last rank's all-reduce has more numbers than the first's, in a call deep inside torch."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if job.layout.dp == 2 and not job.steps[0].active_tokens[0]:
            all_reduce(torch.ones(1 + (rank.index << 20)))
        return TwoLayouts.observe(self, job, rank)


class DecliningAlone(Faulty):
    def fail(self) -> None:
        raise Refused("not on this rank")


class Declining(TwoLayouts):
    """Lacks one mode and refuses another on every rank."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if job.aggregation.mode == "prompt_mean":
            raise Unsupported("no prompt_mean")
        if job.aggregation.mode == "constant":
            raise Refused("ValueError: constant is out of fashion")
        return super().observe(job, rank)


class WithoutPromptMean(TwoLayouts):
    """Does not declare one mode, and refuses steps without active tokens."""

    def describe(self) -> Description:
        return replace(super().describe(), modes=frozenset(Mode) - {Mode.PROMPT_MEAN})

    def observe(self, job: Job, rank: Rank) -> Observation:
        assert job.aggregation.mode is not Mode.PROMPT_MEAN
        if not all(step.mask.any() for step in job.steps):
            raise Refused("ValueError: no active token in the batch")
        return super().observe(job, rank)


class WholeGroupsOnly(TwoLayouts):
    """Refuses, in every mode, steps whose prompt groups cannot be split evenly over ranks."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if any(len(set(step.groups.tolist())) % job.layout.dp for step in job.steps):
            raise Refused("ValueError: 3 prompt groups on 2 ranks")
        return super().observe(job, rank)


class AdjacentGroupsOnly(TwoLayouts):
    """Refuses steps in which the samples of a prompt are not adjacent."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        for groups in (step.groups.tolist() for step in job.steps):
            if groups != sorted(groups):
                raise Refused("AssertionError: uid 0 appears in non-contiguous positions")
        return super().observe(job, rank)


class Unloadable(TwoLayouts):
    def load(self, source: Path | None) -> None:
        raise ImportError("No module named 'flash_attn'")


class HalfLoaded(TwoLayouts):
    """Fails to load, and fails in a different way when it is loaded again in the same process."""

    begun = False

    def load(self, source: Path | None) -> None:
        if HalfLoaded.begun:
            raise AssertionError("an engine is registered twice")
        HalfLoaded.begun = True
        raise ImportError("No module named 'flash_attn'")


class OneTokenShort(TwoLayouts):
    """Counts one token fewer than there are."""

    def trainer(self, job: Job, rank: int) -> Trainer:
        return MiscountingTrainer(job, rank)


class WrongUnlessItDeclines(TwoLayouts):
    """Declines nine samples on two ranks in one mode, and miscounts their tokens in the others."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        if _has_nine_on_two(job) and job.aggregation.mode is Mode.TOKEN_MEAN:
            raise Refused("samples must divide evenly among ranks")
        return super().observe(job, rank)

    def trainer(self, job: Job, rank: int) -> Trainer:
        return (MiscountingTrainer if _has_nine_on_two(job) else Trainer)(job, rank)


def _has_nine_on_two(job: Job) -> bool:
    return job.layout.dp == 2 and any(step.size == 9 for step in job.steps)


class MiscountingTrainer(Trainer):
    def divided(self, samples: list[SampleTensors]) -> list[SampleTensors]:
        tokens = sum(sample.tokens for sample in samples)
        return assign_denominators(samples, [float(tokens - 1)] * len(samples))


class Slow(TwoLayouts):
    """Takes long enough to be interrupted."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        time.sleep(0.5)
        return super().observe(job, rank)


class Chattering(TwoLayouts):
    """Prints while it is loaded."""

    def load(self, source: Path | None) -> None:
        print("loading weights: 100 %", flush=True)


class IgnoringConfigurations(TwoLayouts):
    """Declares the settings of configurations, but always runs the default configuration."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        return super().observe(replace(job, configuration=DEFAULT_CONFIGURATION), rank)


class DeclaringNoConfiguration(IgnoringConfigurations):
    """Declares that configurations can set nothing."""

    def describe(self) -> Description:
        return replace(super().describe(), configurations={})


class RenamingAMetric(TwoLayouts):
    """Logs its policy loss under another name."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        observed = super().observe(job, rank)
        logged = {m: v for m, v in observed.reported.items() if m is not Metric.POLICY_LOSS}
        return replace(observed, reported=logged)


class LoggingTheFirstStep(TwoLayouts):
    """Logs the numbers of the first step only."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        observed = super().observe(job, rank)
        logged = {metric: values[:1] for metric, values in observed.reported.items()}
        return replace(observed, reported=logged)


class LoggingOnOneRank(NativeAdapter):
    """Logs nothing on several ranks."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        observed = super().observe(job, rank)
        return observed if job.layout.world_size == 1 else replace(observed, reported={})


class RecordingNothing(TwoLayouts):
    """Declares that it records forward passes, and records none."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        return replace(super().observe(job, rank), forward_passes=())


class LoggingRankSums(TwoLayouts):
    """Logs numbers that are too large by the number of data-parallel ranks."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        observed = super().observe(job, rank)
        logged = {
            metric: tuple(job.layout.dp * value for value in values)
            for metric, values in observed.reported.items()
        }
        return replace(observed, reported=logged)


class LoggingRolloutsPerMicroBatch(TwoLayouts):
    """Adds up the logged numbers of rollouts once for every micro-batch."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        observed = super().observe(job, rank)
        logged = {
            metric: tuple(int(job.layout.micro_batches) * value for value in values)
            for metric, values in observed.reported.items()
            if metric in OF_ROLLOUTS
        }
        return replace(observed, reported=observed.reported | logged)


class FavouringTheFirstToken(TwoLayouts):
    """Multiplies the weight of a step's first active token by 1.25, as no known mistake does."""

    def observe(self, job: Job, rank: Rank) -> Observation:
        observed = super().observe(job, rank)
        for weights in observed.token_weights:
            weights[weights.nonzero()[0][:1]] *= 1.25
        return observed


class ValidatingNothing(TwoLayouts):
    """Accepts every configuration at startup."""

    def started(self, job: Job) -> None:
        pass


class LeavingStateBehind(NativeAdapter):
    """After a step that raises, every further step of the process raises."""

    is_within: ClassVar[bool] = False

    def observe(self, job: Job, rank: Rank) -> Observation:
        assert not self.is_within
        type(self).is_within = True
        observation = super().observe(job, rank)
        type(self).is_within = False
        return observation
