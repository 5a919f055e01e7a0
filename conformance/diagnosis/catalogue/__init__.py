"""The known mistakes: what each makes of the weights or of the derivatives of a step.

`mistakes` yields them all for a step, from `miscounts` and `parts`; `missing_tokens` has those that
lose tokens, `derivatives` those of policy losses whose ratios are not 1.
"""
