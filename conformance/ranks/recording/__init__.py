"""Records the tensor operations of a traced job, with the source lines that called each.

The input is an adapter's job, run within a `Recorder`, or within a `JaxRecorder` if its arrays are
JAX's. The output is a `RankTrace` of plain numbers and names. The framework is not patched: torch
passes each operation to a dispatch mode, and JAX each operation and compiled function to the
current trace.
"""
