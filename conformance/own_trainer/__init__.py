"""Checks a user's own train step, without an adapter: the user's code is the loop's body.

In: a mode, and what the trainer is to be tried with. Out: steps with a model, samples and
advantages, one after the other, and at the end the mistakes with the user's own lines. `jobs`
chooses the steps, `model` and `step` are what the user is given, `worlds` are the ranks of a step,
`check` asks for the jobs that judges and traces want, `outcome` puts into words what came of them.
`in_place` looks at one step of a real run.
"""
