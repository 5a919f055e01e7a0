"""Records what a framework does to tensors while a job is traced, and who asked for it.

In: an adapter's job, run within a `Recorder`, or a `JaxRecorder` if its arrays are JAX's. Out: a
`RankTrace` of plain numbers and names. Nothing of the framework is patched: torch shows each
operation to a dispatch mode, and JAX each operation and compiled function to the current trace.
"""
