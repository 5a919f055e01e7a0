"""What an author is told of each flaw: what is wrong with the probe, and the way out."""

WORDS = {
    "wrong_shape": (
        "{field} must have an array for each optimizer step, with an entry for each response"
        " token: {right} entries, and it has the shapes {shapes}"
    ),
    "not_finite": "some token weights are NaN or infinite: {tokens}",
    "no_gradient": (
        "the gradient of the probe is 0 for every token: it does not reach the loss (is it"
        " detached, or a copy?), or it is read before the backward pass or after it was zeroed"
    ),
    "gradients_returned": (
        "token_weights holds the gradients of the probe and not the weights: divide them by"
        " ProbedBatch.dloss_dlogprob, as ProbedBatch.weights_of_steps does"
    ),
    "wrong_sign": (
        "every weight has the wrong sign: the derivative of a loss by the log-probability is"
        " minus the advantage (ProbedBatch.dloss_dlogprob)"
    ),
    "derivative_not_one": (
        "the derivative of a log-probability by the probe is {factor:.7g} = 1 - 1/{vocabulary}"
        " and not 1: the model's logits are those of a plain softmax over {vocabulary} tokens."
        " Use adapters.toolkit.probe.logits_head, next to whose CERTAIN_LOGIT the others do not"
        " count, and lower old log-probabilities by it"
    ),
    "factor": (
        "every weight is {factor:.7g} times as large as it should be, on samples that weigh the"
        " same in every mode: the derivative of a log-probability by the probe, or the ratio of"
        " the new to the old policy, is that number and not 1; or the gradient is read before or"
        " after a division of the framework's, or is of several steps. If it is none of these,"
        " the framework divides by a wrong number"
    ),
    "probe_of_another_token": (
        "each token has the weight of the token {way} it: the probe is added to the"
        " log-probability of another token than its own. Logits at a position predict the next"
        " token, whose id is input_ids + 1"
    ),
    "ratio_not_one": (
        "the ratio of the new to the old policy is {factor:.4g} and not exactly 1, so that"
        " tokens with {clipped} advantages are clipped: new log-probabilities are the old ones"
        " {difference:+.4g}{softmax}. Old log-probabilities must be those of the probed model:"
        " logits_head lowers them by adapters.toolkit.probe.CERTAIN_LOGIT = 64"
    ),
    "depends_on_the_whole_probe": (
        "the log-probability of every token depends on the whole probe: inactive tokens get a"
        " gradient, and all tokens the same. The logits at a position may contain the probe's"
        " entry of the token that they predict, and of no other"
        " (adapters.toolkit.probe.logits_head)"
    ),
    "unexplained": (
        "{wrong} of {all} tokens have another weight than they should, and nothing that this"
        " check knows explains it: {tokens}"
    ),
    "gradient_not_zeroed": (
        "the second of two equal jobs gives the sum of both: the gradient of the probe is not"
        " set to 0 after it was read (adapters.toolkit.probe.GradientReader does so)"
    ),
    "state_left_behind": (
        "the second of two equal jobs gives other weights than the first, so something of the"
        " first is left: has its optimizer step changed the probe? It must be 0 again, so give a"
        " learning rate of 0. {tokens}"
    ),
    "padding_reaches_the_probe": (
        "where samples are equally long all weights are right, and where some are padded,"
        " {wrong} of {all} tokens have another weight than the rest of their sample: {tokens}."
        " Padding must have the id 0 (PADDING_ID), advantages of 0 and no place in the loss mask"
    ),
    "forward_passes_not_recorded": (
        "describe() declares records_forward_passes, and {wrong} of {all} tokens are in none:"
        " {places}. Have the model call ForwardPasses.note with all of its input ids, and return"
        " ProbedBatch.forward_passes of them"
    ),
    "prompts_not_recorded": (
        "the first token of every response is in no forward pass, as it is looked for where its"
        " prompt ends: record the ids of prompts as well"
    ),
    "padding_has_the_id_of_a_token": (
        "{wrong} of {all} tokens are in a forward pass without the rest of their sample:"
        " {places}. Is padding given the id of a token? It must be 0"
        " (adapters.contract.probed_batch.PADDING_ID)"
    ),
}
"""By name; fields in braces are filled in where the flaw is found."""
