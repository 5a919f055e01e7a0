"""Helpers that all adapters share and that do not depend on any framework.

`probe` has the probe in torch: wrappers of a framework's functions, models, readers of the
gradient, and tables of values by token id. `outputs` has the output types in which a probed model
returns logits. `worlds` caches objects that the jobs of one world share, and makes observations;
`settings` computes the sizes that a job requires. `imports`, `calls` and `cuda_on_cpu` load a
framework's code and call it.
"""
