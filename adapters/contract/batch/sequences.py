"""The sequences of a batch of rollouts: token ids, masks, and the forward passes that held them.

Token ids are unique in a batch, so that a token is recognised after slicing, packing and padding:
they count through all sequences from 1, and 0 is padding. A token's id is the id of the token
before it, from which it is predicted, plus 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from reference.arrays import Integers, Mask, Values
    from reference.step import Step

_Number = TypeVar("_Number", bound=np.generic)

PADDING_ID = 0


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences of all steps of a batch.

    Lists have one array per sample, with one entry per response token unless stated otherwise.
    """

    steps: tuple[Step, ...]

    @cached_property
    def sequences(self) -> list[Integers]:
        """Token ids of each sample: its prompt, followed by its response."""
        lengths = [step.prompt_lengths + step.response_lengths for step in self.steps]
        ends = np.cumsum(np.concatenate(lengths))
        return np.split(np.arange(1, 1 + ends[-1]), ends[:-1])

    @cached_property
    def prompts(self) -> list[Integers]:
        """Token ids of each sample's prompt."""
        lengths = np.concatenate([step.prompt_lengths for step in self.steps]).tolist()
        return [ids[:length] for ids, length in zip(self.sequences, lengths, strict=True)]

    @cached_property
    def responses(self) -> list[Integers]:
        """Token ids of each sample's response."""
        pairs = zip(self.sequences, self.prompts, strict=True)
        return [ids[len(prompt) :] for ids, prompt in pairs]

    @cached_property
    def names(self) -> list[Integers]:
        """Names of response tokens, by sample; values depend on the name, by default the id."""
        responses = iter(self.responses)
        return [
            ids if step.token_names is None else step.token_names[response]
            for step in self.steps
            for response, ids in zip(step.responses, responses, strict=False)
        ]

    @cached_property
    def sample_names(self) -> Integers:
        """The name of each sample: by default, its index in the batch."""
        starts = np.cumsum([0, *(step.size for step in self.steps)])
        of_steps = zip(self.steps, starts, strict=False)
        return np.concatenate(
            [
                start + np.arange(step.size) if step.sample_names is None else step.sample_names
                for step, start in of_steps
            ]
        )

    def response_values(self, table: Values) -> list[Values]:
        """The values of each sample's response tokens in a table that is cycled over names."""
        return [table[names % len(table)] for names in self.names]

    @cached_property
    def masks(self) -> list[Mask]:
        """Loss mask of each sample after rejection sampling."""
        return [step.mask[response] for step in self.steps for response in step.responses]

    @cached_property
    def original_masks(self) -> list[Mask]:
        """Loss mask of each sample before rejection sampling: the framework's input."""
        return [step.mask_before_rejection[ids] for step in self.steps for ids in step.responses]

    @property
    def sample(self) -> Integers:
        """The index of each token's sample in the batch, flat."""
        lengths = [len(ids) for ids in self.responses]
        return np.repeat(np.arange(len(lengths)), lengths)

    @property
    def groups(self) -> Integers:
        """The prompt group of each sample; two steps never share a group."""
        return self._numbered("groups")

    @property
    def trajectories(self) -> Integers:
        """The rollout of each sample; two steps never share a rollout."""
        return self._numbered("rollouts")

    def _numbered(self, column: str) -> Integers:
        of_steps = enumerate(getattr(step, column) for step in self.steps)
        named = [(index, name) for index, names in of_steps for name in names.tolist()]
        numbers: Integers = np.unique(named, axis=0, return_inverse=True)[1]
        return numbers

    @cached_property
    def probe_size(self) -> int:
        """Number of token ids, including padding."""
        return 1 + sum(map(len, self.sequences))

    def forward_passes(self, passes: Sequence[Integers]) -> tuple[NDArray[np.int32], ...]:
        """For each step, the index of the forward pass in which a rank held each token, or -1.

        ``passes`` are the token ids of each forward pass of the rank's model. A pass holds a token
        if it contains the token's predecessor, from which the token is predicted.
        """
        pass_of_id = np.full(self.probe_size, -1, np.int32)
        # In reverse, so that a row repeated as padding counts in its first pass.
        for index, ids in reversed([*enumerate(passes)]):
            pass_of_id[ids[ids < self.probe_size]] = index  # larger ids are the framework's padding
        return self.split(pass_of_id[np.concatenate(self.responses) - 1])

    def rows(self, passes: Sequence[Integers]) -> tuple[NDArray[np.int32], ...]:
        """For each step, how many rows of each forward pass have the step's samples: [passes].

        ``passes`` are as in `forward_passes`; a row counts in the pass that holds its first token.
        """
        first_ids = np.array([ids[0] for ids in self.sequences])
        of_steps = np.split(first_ids, np.cumsum([step.size for step in self.steps])[:-1])
        return tuple(
            np.array([np.isin(ids, starts).sum() for ids in passes], np.int32)
            for starts in of_steps
        )

    def split(self, values: NDArray[_Number]) -> tuple[NDArray[_Number], ...]:
        """Cut a flat array over all steps into an array for each step."""
        ends = np.cumsum([len(step.mask) for step in self.steps])
        return tuple(np.split(values, ends[:-1]))
