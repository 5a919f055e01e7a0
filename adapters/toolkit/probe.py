"""The probe in torch: wrappers that add it, models that hold it, readers of its gradient."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from adapters.contract.batch.altered import PAINTED, SELECTED, Attached, elsewhere
from adapters.contract.batch.token_values import ENTROPIES, NO_LOG_PROBS
from adapters.contract.objective import ROUTER_COEFFICIENT, Z_COEFFICIENT
from adapters.contract.recorded import TRAINING
from adapters.toolkit.calls import nothing
from adapters.toolkit.worlds import all_gather
from reference.arrays import Gradient, Integers, Values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from adapters.contract.batch.probed_batch import ProbedBatch

_T = TypeVar("_T")


class Records(list[_T]):
    """A list of records that is emptied when it is read."""

    def drain(self) -> list[_T]:
        """Return the records added since the last call."""
        recorded = self.copy()
        self.clear()
        return recorded


def cycled(values: Values, ids: Tensor) -> Tensor:
    """Look up token ids in a cyclic table: float32, with the shape of ``ids``."""
    table = torch.from_numpy(values).to(ids.device, torch.float32)
    return table[ids % len(table)]


def token_table(batch: ProbedBatch, values: Sequence[NDArray[Any]], fill: float = 0.0) -> Tensor:
    """A table of the values of response tokens by token id: float32, [probe_size + 2].

    ``values`` has an array for each sample. Other ids have the value ``fill`` unless these ids are
    poisoned; the last two ids are for tokens that a framework appends to the batch.
    """
    table = torch.from_numpy(elsewhere(values, batch.probe_size + 2, fill)).float()
    ids = torch.from_numpy(np.concatenate(batch.responses))
    table[ids] = torch.from_numpy(np.concatenate(values)).float()
    return attached(table) if isinstance(values, Attached) else table


LEAVES = Records[Tensor]()
"""The leaf tensors, which get gradients, of columns attached since the last job."""

ROUTED = Records[int]()
"""The number of positions of each forward pass whose router multiplies its losses by this number.
"""


def attached(values: Tensor) -> Tensor:
    """A copy of values that requires a gradient, which is read after the job; same shape."""
    leaf = torch.zeros_like(values, requires_grad=True)
    LEAVES.append(leaf)
    return values + leaf


def gradient_of_attached() -> Gradient | None:
    """The gradient of the attached column; None if no tensor of such a column was made."""
    leaves = LEAVES.drain()
    if not leaves:
        return None
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return torch.cat([gradient.flatten() for gradient in gradients]).cpu().numpy()


def as_array(gradient: Tensor) -> Gradient:
    """Copy a probe's gradient from any device, dtype and sharding: [capacity]."""
    whole = _gathered(gradient) if isinstance(gradient, DTensor) else gradient
    return whole.detach().float().cpu().numpy().copy()


def _gathered(gradient: DTensor) -> Tensor:
    """The full tensor of a sharded gradient, on the CPU.

    `DTensor.full_tensor` ends in a segmentation fault for CUDA tensors over gloo (torch 2.11).
    """
    whole = gradient.to_local().cpu()
    for dimension, placement in reversed([*enumerate(gradient.placements)]):
        if placement.is_replicate():
            continue
        assert isinstance(placement, Shard), placement
        shards = all_gather(whole, gradient.device_mesh.get_group(dimension))
        whole = torch.cat(shards, placement.dim)
    return whole


SMALLEST_CAPACITY = 512
"""The smallest capacity, which is enough for every ordinary case: each further size would require
further engines and process groups."""


def probe_capacity(size: int) -> int:
    """The capacity of a probe for batches of up to ``size`` token ids: a power of two."""
    return max(1 << size.bit_length(), SMALLEST_CAPACITY)


def selected(probe: Tensor) -> Tensor:
    """The probe, [capacity]; if a token is painted, only its entry has a gradient.

    The probe of a reference model has no gradient, and may lack the token's entry.
    """
    paint = PAINTED.get()
    if paint is None or paint.id is None or not probe.requires_grad:
        return probe
    factors = torch.zeros_like(probe)
    factors[paint.id] = SELECTED
    return probe * factors


class ForwardPasses(Records[Integers]):
    """Records the token ids of each forward pass of a rank's model: [tokens]."""

    def note(self, ids: Tensor) -> None:
        """Record a forward pass of the adapter's model, if it is for training."""
        if torch.is_grad_enabled():
            TRAINING.note_pass()
            self.append(ids.detach().cpu().numpy().reshape(-1))


class GradientReader:
    """Records the probe's gradient, [capacity], at each step of an optimizer of the probe alone.

    The gradient is then set to 0, as NaN would spoil the probe even at a learning rate of 0.
    ``whole`` gathers a gradient that may be sharded over ranks into one array.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, whole: Callable[[Tensor], Gradient] = as_array
    ) -> None:
        self._gradients, self._whole = Records[Gradient](), whole
        optimizer.register_step_pre_hook(self._read)

    def drain(self) -> list[Gradient]:
        """Return the gradients since the last call."""
        return self._gradients.drain()

    def take(self) -> Gradient | None:
        """Return the gradient since the last call; None if the trainer skipped its step.

        Raises:
            ValueError: the trainer made several steps.
        """
        gradients = self.drain()
        if len(gradients) > 1:
            raise ValueError(f"{len(gradients)} optimizer steps were made of 1")
        return gradients[0] if gradients else None

    def _read(self, optimizer: torch.optim.Optimizer, *arguments: object) -> None:
        [probe] = [one for one in optimizer.param_groups[0]["params"] if one.requires_grad]
        if probe.grad is None:  # no backward pass reached the probe
            probe.grad = torch.zeros_like(probe)
        self._gradients.append(self._whole(probe.grad))
        probe.grad.zero_()


def router_loss(ids: Tensor, probe: Tensor) -> Tensor:
    """The load-balancing loss that a mixture-of-experts model returns from a forward pass.

    It is the mean of the probe's entries over positions, plus the probe's last entry. Multiplied by
    `ROUTER_COEFFICIENT`, the last entry stands for the z-loss.
    """
    return probe[ids].mean() + Z_COEFFICIENT / ROUTER_COEFFICIENT * probe[-1]


class ProbeSeam:
    """Adds the probe to log-probabilities and entropies that a framework computes from logits.

    The policy has a vocabulary of one token, hence log-probabilities and entropies of 0.
    `ProbedBatch.log_prob_table` is added to log-probabilities, `ProbedBatch.entropy_table` to
    entropies. A model sets ``probe``, [capacity], and ``predicted``, the ids that its latest
    forward pass predicts. An adapter calls `start` with the batch of its job; otherwise
    log-probabilities stay 0.
    """

    VOCABULARY = 1

    def __init__(self) -> None:
        self.probe: Tensor | None = None
        self.predicted: Tensor | None = None
        self.log_prob_table, self.entropy_table = NO_LOG_PROBS, ENTROPIES
        self._homes: list[Any] = []  # modules whose functions are wrapped
        self.has_router = False  # whether the model returns a router loss

    def start(self, batch: ProbedBatch) -> None:
        """Use the values of a job's batch."""
        self.log_prob_table, self.entropy_table = batch.log_prob_table, batch.entropy_table

    def log_probs(self, tokens: Tensor) -> Tensor:
        """The values to add to the log-probabilities of tokens, with the shape of ``tokens``."""
        return cycled(self.log_prob_table, tokens) + self._entries(tokens)

    def _entries(self, tokens: Tensor) -> Tensor:
        assert self.probe is not None
        return self.probe.float()[tokens]

    def entropies(self, tokens: Tensor, *, trained: bool) -> Tensor:
        """The values to add to the entropies of the positions that predict tokens: same shape."""
        probe = self._entries(tokens)
        return cycled(self.entropy_table, tokens) + (probe if trained else probe.detach())

    def put_into(self, home: Any, log_probs: str, entropies: str | None = None) -> None:
        """Wrap a module's functions of these names, once per process, to add the probe."""
        if home in self._homes:
            return
        self._homes.append(home)
        setattr(home, log_probs, self.wrap_log_probs(getattr(home, log_probs)))
        if entropies is not None:
            setattr(home, entropies, self.wrap_entropies(getattr(home, entropies)))

    def wrap_log_probs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a framework's function of logits and labels, adding the probe to the result."""

        def log_probs(logits: Any, labels: Tensor, *rest: Any, **options: Any) -> Any:
            __tracebackhide__ = True  # attributes errors to the caller, not the adapter
            real = function(logits, labels % self.VOCABULARY, *rest, **options)
            return real + self.log_probs(labels)

        return log_probs

    def wrap_entropies(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a framework's function of logits, adding the entropies of the predicted ids.

        The entropies have a gradient unless the framework passes ``requires_grad=False``.
        """

        def entropies(logits: Any, *rest: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            real = function(logits, *rest, **options)
            assert self.predicted is not None
            predicted = self.predicted.reshape(real.shape)
            return real + self.entropies(predicted, trained=options.get("requires_grad", True))

        return entropies


SEAM = ProbeSeam()
"""The seam of this process, which runs one job at a time."""


class ProbeLayer(nn.Module):
    """Holds the probe, in a separate module because FSDP shards layer by layer."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(capacity))

    def forward(self) -> Tensor:
        """A copy of the whole probe, because FSDP frees the parameter itself after the layer."""
        return selected(self.probe.clone())


class ProbedModel(nn.Module):
    """Replaces a Hugging Face model: its head computes outputs from token ids and the probe."""

    _no_split_modules = (ProbeLayer.__name__,)

    def __init__(self, capacity: int, passes: ForwardPasses, head: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = ProbeLayer(capacity)
        self._passes, self._head = passes, head

    def forward(self, input_ids: Tensor, *arguments: Any, **named: Any) -> Any:
        """The outputs of a forward pass with any number of rows; the pass is recorded."""
        self._passes.note(input_ids)
        return self._head(input_ids, self.layer())


HEADED = SimpleNamespace(
    model_type="probe", num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True
)
"""The configuration of a model whose heads can be split over ranks of Ulysses."""


class ProbedTransformer(ProbedModel):
    """A probed model with a configuration, and with its layer where frameworks look for layers."""

    def __init__(
        self, capacity: int, passes: ForwardPasses, head: Callable[..., Any], config: Any = HEADED
    ) -> None:
        super().__init__(capacity, passes, head)
        self.config = config

    @property
    def model(self) -> Any:
        """The module that has the transformer's layers."""
        return SimpleNamespace(layers=[self.layer])


class PretrainedBase(nn.Module):
    """Replaces the Hugging Face class of pretrained models that a framework's critic extends."""

    base_model_prefix = "model"
    _no_split_modules = (ProbeLayer.__name__,)

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    post_init = staticmethod(nothing)  # there is nothing to initialise


def freeze_identity_head(head: nn.Linear) -> None:
    """Make a value head on hidden states of width 1 the identity, and freeze it."""
    nn.init.ones_(head.weight)
    head.requires_grad_(False)


CERTAIN_LOGIT = 64.0
"""The logit of padding in `logits_head`, so large that other logits do not change the softmax's
denominator."""


def logits_head(input_ids: Tensor, probe: Tensor) -> dict[str, Tensor]:
    """Logits whose log-softmax is the next token's entry of the probe, minus `CERTAIN_LOGIT`.

    This head is for trainers that compute log-probabilities from logits themselves. The derivative
    of a log-probability by the probe is exactly 1 in float32, as the padding has all the
    probability. The vocabulary is the probe's capacity: [*input_ids, capacity]. Old
    log-probabilities must be lowered by the same constant. The result is a dictionary because FSDP2
    attaches backward hooks to tensors in dictionaries.
    """
    predicted = ((input_ids + 1) % len(probe)).unsqueeze(-1)
    logits = torch.zeros(*input_ids.shape, len(probe), device=probe.device)
    logits[..., 0] = CERTAIN_LOGIT
    return {"logits": logits.scatter(-1, predicted, probe.float()[predicted])}


def probable_head(
    log_prob_table: Values, first_id: int
) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """A head like `logits_head`, with the log-probabilities of a table that starts at ``first_id``.

    The padding has the remaining probability p. The derivative of a token's log-probability by its
    logit is p; the probe is divided by p, so that the derivative by the probe is 1.
    """

    def head(input_ids: Tensor, probe: Tensor) -> dict[str, Tensor]:
        predicted = ((input_ids + 1) % len(probe)).unsqueeze(-1)
        log_probs = cycled(log_prob_table, predicted - first_id)
        others = -torch.expm1(log_probs)
        logits = torch.full((*input_ids.shape, len(probe)), -CERTAIN_LOGIT, device=probe.device)
        logits[..., :1] = torch.log(others)
        of_tokens = log_probs + probe.float()[predicted] / others
        return {"logits": logits.scatter(-1, predicted, of_tokens)}

    return head
