"""The reference's expectations of a step and of the numbers that a framework logs.

The input is a job's steps, the framework's conventions, and how ranks cut the steps into forward
passes. The output is a `StepContext` with the right weights, and the right terms of a loss or of a
logged number. `judging` and `explain` compare observations with this output.
"""
