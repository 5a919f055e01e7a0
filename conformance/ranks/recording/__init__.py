"""Records what a framework does to tensors while a job is traced, and who asked for it.

In: an adapter's job, run within a `Recorder`. Out: a `RankTrace` of plain numbers and names.
Nothing of the framework is patched: torch shows each operation to a dispatch mode.
"""
