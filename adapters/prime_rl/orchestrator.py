"""Advantages from rewards, by the function that the orchestrator calls for a complete group."""

from __future__ import annotations

import asyncio
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapters.prime_rl.importing import advantages_config, algorithms, module
from adapters.toolkit.calls import call_supported
from adapters.toolkit.imports import found

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reference.arrays import Integers, Mask, Values


Turn = tuple[Any, "Integers", "Mask"]
"""A training sample, its response and the response's mask."""


def finished(turns: Sequence[Turn], reward: float) -> Any:
    """A rollout with a sample for each turn, and all attributes that any version reads.

    Before June 2026 a rollout was a dictionary; later versions keep the dictionary as ``raw``.
    """
    samples, responses, masks = zip(*turns, strict=True)
    tokens = sum(map(len, responses))
    rollout = SimpleNamespace(
        id="corpus",
        env_name="corpus",
        reward=reward,
        has_error=False,
        agent=SimpleNamespace(trainable=True),
        nodes=[
            SimpleNamespace(mask=mask.tolist(), token_ids=response.tolist(), advantages=None)
            for response, mask in zip(responses, masks, strict=True)
        ],
        samples=list(samples),
        completion_len=tokens,
        num_output_tokens=tokens,
        num_total_tokens=tokens,
        num_turns=len(turns),
        advantages=None,
    )
    rollout.raw = {
        "reward": reward,
        "trajectory": [
            {"tokens": {"prompt_ids": [], "completion_ids": response.tolist()}}
            for response in responses
        ],
        "env_name": "corpus",
        "example_id": 0,
    }
    if assign := found("prime_rl.orchestrator.types:Rollout.assign_advantages"):
        rollout.assign_advantages = MethodType(assign, rollout)
    return rollout


def score(group: Sequence[Any], kind: str, seq_len: int) -> None:
    """Let the orchestrator compare a group's rewards and set the advantage of each rollout."""
    by = _score_by_algorithm if algorithms() else _score_by_function
    by(group, advantages_config(kind), seq_len)


def _score_by_algorithm(group: Sequence[Any], config: Any, seq_len: int) -> None:
    algo = module("orchestrator.algo")
    algorithm = call_supported(
        algo.build_algorithm, config, None, renderer=None, max_seq_len=seq_len
    )
    # This method exists since August 21, 2026.
    if found("prime_rl.orchestrator.algo:Algorithm.finalize_episode"):
        scoring = algorithm.finalize_group([SimpleNamespace(traces=[one]) for one in group])
    elif hasattr(algorithm, "finalize_group"):
        scoring = algorithm.finalize_group(group)
    else:
        scoring = algo.finalize_group(algorithm, group)
    asyncio.run(scoring)


def _score_by_function(group: Sequence[Any], config: Any, seq_len: int) -> None:
    """Score a group in versions before June 27, 2026, where rollouts have one advantage."""
    home = module("orchestrator.advantage")
    if hasattr(home, "assign_advantages"):
        function = call_supported(home.setup_advantage_fn, config, max_seq_len=seq_len)
        home.assign_advantages(group, function)
        return
    raw = [rollout.raw for rollout in group]
    returned = call_supported(
        home.compute_advantages,
        rollouts=raw,
        rewards=[one["reward"] for one in raw],
        completion_lengths=[rollout.completion_len for rollout in group],
        samples_per_problem=len(group),
        advantage_config=config,
    )
    for rollout, advantage in zip(
        group, returned or [one["advantage"] for one in raw], strict=True
    ):
        rollout.advantage = advantage


def advantages(rollout: Any) -> Iterator[Values]:
    """Yields token advantages of each sample of a scored rollout; masked tokens have 0."""
    for node, sample in zip(rollout.nodes, rollout.samples, strict=True):
        values, mask = np.zeros(len(node.mask)), np.array(node.mask)
        if node.advantages is not None:
            values[mask] = node.advantages
        elif getattr(sample, "advantages", None) is not None:
            values[:] = sample.advantages[-len(values) :]
        elif hasattr(rollout, "advantage"):
            values[mask] = rollout.advantage
        else:
            assert not mask.any(), "the orchestrator has left out a sample that trains"
        yield values
