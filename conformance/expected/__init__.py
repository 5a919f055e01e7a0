"""What the reference expects of a step, and of what a framework logs of it.

The input is a job's steps with the framework's conventions and how its ranks cut them; the output
is a `StepContext` with the right weights, and the right terms of a loss or of a logged number.
Whoever judges or explains observations holds them against these.
"""
