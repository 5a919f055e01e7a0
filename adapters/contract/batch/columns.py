"""The values of the tokens of a batch of rollouts, column by column, for each objective."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from adapters.contract import objective
from adapters.contract.batch import token_values
from adapters.contract.batch.sequences import Sequences
from adapters.contract.objective import Objective
from reference.aggregation import AdvantageUnit, DivergenceEstimator
from reference.controllers import AdaptiveCoefficient
from reference.losses import corrections, divergences, policy_losses, value_losses
from reference.losses.policy_losses import PolicyTokens
from reference.losses.value_losses import ValueTokens

if TYPE_CHECKING:
    from reference.arrays import Values


DERIVATIVES = {
    Objective.OFF_POLICY: policy_losses.ppo,
    Objective.REJECTION_OFF_POLICY: policy_losses.ppo,
    Objective.DUAL_CLIP: policy_losses.dual_clip,
    Objective.GSPO: policy_losses.gspo,
    Objective.CISPO: policy_losses.cispo,
    Objective.SAPO: policy_losses.sapo,
    # All new log-probabilities are 0, so all covariances are 0 and no token is clipped.
    # `COVARIANCE_CLIPPED` has non-zero covariances.
    Objective.CLIP_COV: policy_losses.ppo,
    Objective.KL_COV: policy_losses.kl_cov,
    Objective.GEO_MEAN: policy_losses.geo_mean,
    Objective.GPG: policy_losses.gpg,
    Objective.DRO: policy_losses.dro,
    Objective.TIS_TOKEN: corrections.tis_token,
    Objective.TIS_SEQUENCE: corrections.tis_sequence,
    Objective.SEQUENCE_MASKED: corrections.sequence_masked,
    Objective.COVARIANCE_CLIPPED: corrections.covariance_clipped,
    Objective.COVARIANCE_PENALISED: corrections.covariance_penalised,
    Objective.DPPO_TV: policy_losses.dppo_tv,
    Objective.DPPO_KL: policy_losses.dppo_kl,
    Objective.IMPORTANCE_SAMPLING: policy_losses.importance_sampling,
    Objective.ROLLOUT_IS: policy_losses.rollout_is,
    Objective.REINFORCE_NORMALISED: corrections.reinforce_normalised,
    Objective.TIS_NORMALISED: corrections.tis_normalised,
    Objective.TIS_BOUNDED: corrections.tis_bounded,
    Objective.ICEPOP: corrections.icepop,
    Objective.SEQUENCE_ICEPOP: corrections.sequence_icepop,
    Objective.PRODUCT_MASKED: corrections.product_masked,
    Objective.OUTLIER_MASKED: corrections.outlier_masked,
    Objective.OPSM: corrections.opsm,
    Objective.M2PO: corrections.m2po,
}
"""The derivative of each off-policy loss with respect to a token's log-probability."""

_Tokens = TypeVar("_Tokens", PolicyTokens, ValueTokens)


@dataclass(frozen=True, eq=False)
class Columns(Sequences):
    """The sequences of one batch of rollouts and the values of their tokens for an objective.

    Lists have one array per sample, with one entry per response token unless stated otherwise.
    """

    objective: Objective = Objective.POLICY
    kl_estimator: DivergenceEstimator = DivergenceEstimator.K1
    advantage_unit: AdvantageUnit = AdvantageUnit.TOKEN

    @cached_property
    def advantages(self) -> list[Values]:
        """Advantages for the framework: 0 if the objective has no policy loss."""
        if self.objective in token_values.WITHOUT_POLICY_LOSS:
            return [np.zeros(len(ids)) for ids in self.responses]
        return self.raw_advantages

    @cached_property
    def raw_advantages(self) -> list[Values]:
        """A non-zero advantage for each token, so that only the mask can exclude a token.

        With advantages by token, tokens that only a changed step has (`NEW_NAME`) have 0.
        """
        if self.objective in objective.ONE_ADVANTAGE or self.advantage_unit is AdvantageUnit.SAMPLE:
            of_sample = token_values.ADVANTAGES[self.sample_names % len(token_values.ADVANTAGES)]
            of_samples = zip(self.responses, of_sample, strict=True)
            return [np.full(len(ids), advantage) for ids, advantage in of_samples]
        of_tokens = zip(self.response_values(token_values.ADVANTAGES), self.names, strict=True)
        return [np.where(names < token_values.NEW_NAME, given, 0.0) for given, names in of_tokens]

    @property
    def sample_advantages(self) -> Values:
        """One advantage for each sample, [N], for frameworks that take advantages by sample."""
        return np.array([max(one, key=abs) for one in self.advantages])

    @cached_property
    def log_prob_table(self) -> Values:
        """Log-probabilities of the new policy before the probe is added, cycled over ids."""
        return self._id_table(self._log_prob_table)

    @property
    def _log_prob_table(self) -> Values:
        return (
            token_values.LOG_PROBS
            if self.objective in objective.OF_LOG_PROBS
            else token_values.NO_LOG_PROBS
        )

    def _id_table(self, table: Values) -> Values:
        """A table over token ids, made from a table that is cycled over tokens' names."""
        if all(step.token_names is None for step in self.steps):
            return table
        of_ids = np.resize(table, self.probe_size + 2)
        of_ids[np.concatenate(self.responses)] = np.concatenate(self.response_values(table))
        return of_ids

    @cached_property
    def log_probs(self) -> list[Values]:
        """Log-probabilities of the new policy."""
        return self.response_values(self._log_prob_table)

    @cached_property
    def entropy_table(self) -> Values:
        """Entropies of the new policy before the probe is added, cycled over ids."""
        return self._id_table(token_values.ENTROPIES)

    @cached_property
    def entropies(self) -> list[Values]:
        """Entropies of the new policy where it predicts each token."""
        return self.response_values(token_values.ENTROPIES)

    @cached_property
    def old_log_probs(self) -> list[Values]:
        """Log-probabilities of the old policy."""
        if self.objective not in objective.OFF_POLICY or self.objective is Objective.M2PO:
            return self.log_probs
        table = token_values.FALLS if self.objective is Objective.OPSM else token_values.LOG_RATIOS
        pairs = zip(self.log_probs, self.response_values(table), strict=True)
        return [new - log_ratio for new, log_ratio in pairs]

    @cached_property
    def reference_log_probs(self) -> list[Values]:
        """Log-probabilities of the reference policy."""
        return [-divergence for divergence in self.response_values(token_values.DIVERGENCES)]

    @cached_property
    def teacher_log_probs(self) -> list[Values]:
        """Log-probabilities of a teacher. Under a teacher loss, all differ from the policy's."""
        if self.objective in objective.OF_TEACHER:
            return self.reference_log_probs
        return [-log_ratios for log_ratios in self.response_values(token_values.LOG_RATIOS)]

    @cached_property
    def rollout_log_probs(self) -> list[Values]:
        """Log-probabilities of the rollout policy, which mark the tokens to reject or correct."""
        if self.objective in objective.OF_THE_ROLLOUT_POLICY:
            return self.old_log_probs
        if self.objective in objective.OF_ROLLOUT_RATIOS:
            table = token_values.OWN_LOG_RATIOS.get(self.objective, token_values.ROLLOUT_LOG_RATIOS)
            pairs = zip(self.old_log_probs, self.response_values(table), strict=True)
            return [old - log_ratio for old, log_ratio in pairs]
        of_samples = zip(self.old_log_probs, self.original_masks, self.masks, strict=True)
        return [
            old + np.where(before & ~after, token_values.REJECTED_LOG_PROB, 0.0)
            for old, before, after in of_samples
        ]

    @cached_property
    def returns(self) -> list[Values]:
        """Returns for a critic of values 0: the squared error has the policy loss's gradient.

        Beside a policy loss, the value loss has a different gradient, so that the two losses can be
        distinguished.
        """
        if self.objective is Objective.WITH_VALUE:
            return self.values
        return [advantages / 2 for advantages in self.raw_advantages]

    @cached_property
    def old_values(self) -> list[Values]:
        """A critic's values before training. New values are 0; the loss clips some changes."""
        if self.objective is not Objective.VALUE_CLIPPED:
            return [np.zeros(len(ids)) for ids in self.responses]
        return self.response_values(token_values.OLD_VALUES)

    @cached_property
    def value_tokens(self) -> ValueTokens:
        """The inputs of a critic's loss, for the tokens of all steps, flat."""
        returns = np.concatenate(self.returns)
        return ValueTokens(
            values=np.zeros(len(returns)),
            old_values=np.concatenate(self.old_values),
            returns=returns,
        )

    @cached_property
    def dloss_dlogprob(self) -> Values:
        """Flat derivatives of token losses by log-probability, or by value for a critic's loss.

        If there is a policy loss, auxiliary losses beside it are left out.
        """
        if self.objective in objective.OFF_POLICY:
            return DERIVATIVES[self.objective](self.policy_tokens, objective.CONSTANTS)
        if self.objective is Objective.VALUE_CLIPPED:
            return value_losses.value_clipped(self.value_tokens, objective.CONSTANTS.value_clip)
        if self.objective in (Objective.KL, Objective.ADAPTIVE_KL):
            return objective.KL_COEFFICIENT * self.divergence_derivatives
        if self.objective in objective.OF_TEACHER:
            return -np.concatenate(self.teacher_log_probs)
        raw_advantages = np.concatenate(self.raw_advantages)
        alone = {
            Objective.ENTROPY: -objective.ENTROPY_COEFFICIENT,
            Objective.SFT: -1.0,
            # The framework's own advantages are observed, so only the sign is divided out.
            **dict.fromkeys(objective.FROM_REWARDS, -1.0),
        }
        if self.objective in alone:
            return np.full(len(raw_advantages), alone[self.objective])
        return -raw_advantages

    @property
    def adaptive_coefficient(self) -> AdaptiveCoefficient:
        """The coefficient of `ADAPTIVE_KL`, as adapters configure it.

        The target is 1.1 times the mean divergence of active tokens, so that the coefficient
        changes without being clipped. The horizon is the number of samples of a batch.
        """
        active = self.divergences[np.concatenate(self.masks)]
        mean = float(active.mean()) if len(active) else 1.0
        samples = float(len(self.responses))
        return AdaptiveCoefficient(
            coefficient=objective.KL_COEFFICIENT,
            target=round(1.1 * mean, 4),
            samples=samples,
            horizon=samples,
        )

    @property
    def divergences(self) -> Values:
        """Flat estimates of the divergence from the reference policy."""
        return divergences.estimate(self._reference_log_ratios, self.kl_estimator)

    @property
    def divergence_derivatives(self) -> Values:
        """Flat derivatives of the divergences by each token's log-probability."""
        return divergences.derivative(self._reference_log_ratios, self.kl_estimator)

    @property
    def _reference_log_ratios(self) -> Values:
        return -np.concatenate(self.reference_log_probs)

    def policy_tokens_of_step(self, step_index: int) -> PolicyTokens:
        """The inputs of policy losses, for the tokens of one step."""
        return self._step_tokens(self.policy_tokens, step_index)

    def value_tokens_of_step(self, step_index: int) -> ValueTokens:
        """The inputs of a critic's loss, for the tokens of one step."""
        return self._step_tokens(self.value_tokens, step_index)

    def _step_tokens(self, tokens: _Tokens, step_index: int) -> _Tokens:
        columns = ((each.name, getattr(tokens, each.name)) for each in fields(tokens))
        of_step = {name: self.split(column)[step_index] for name, column in columns}
        return type(tokens)(**of_step)

    @cached_property
    def policy_tokens(self) -> PolicyTokens:
        """The inputs of policy losses, for the tokens of all steps, flat."""
        old = np.concatenate(self.old_log_probs)
        new = np.concatenate(self.log_probs)
        return PolicyTokens(
            advantages=np.concatenate(self.advantages),
            log_probs=new,
            log_ratios=new - old,
            rollout_log_ratios=old - np.concatenate(self.rollout_log_probs),
            mask=np.concatenate(self.masks),
            sequence=self.sample,
            batch=np.repeat(np.arange(len(self.steps)), [len(step.mask) for step in self.steps]),
        )

    @cached_property
    def rewards(self) -> Values:
        """The reward of each sample: as its step gives it, or else equal within a rollout."""
        of_rollouts = token_values.REWARDS[self.trajectories % len(token_values.REWARDS)]
        ends = np.cumsum([step.size for step in self.steps])[:-1]
        pairs = zip(self.steps, np.split(of_rollouts, ends), strict=True)
        return np.concatenate([one if s.rewards is None else s.rewards for s, one in pairs])

    @cached_property
    def values(self) -> list[Values]:
        """A critic's value of each token."""
        return self.response_values(token_values.VALUES)
