"""Checks a user's own train step, without an adapter: the user's code is the loop's body.

The input is a mode, with the ranks, micro-batches and cases to try. The output is steps with a
model, samples and advantages, one after the other, and at the end the mistakes with the user's own
lines. `jobs` chooses the steps, `model` and `step` are the objects that the user trains, `worlds`
makes the ranks of a step, `check` runs the jobs that judges and traces ask for, and `outcome` puts
the result into words. `in_place` watches one step of a real run.
"""
