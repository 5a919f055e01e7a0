"""Helpers that all adapters share, and that know no framework.

`probe` has the probe in torch with its seams, models and readers, and tables of values by token id.
`outputs` has the forms in which a probed model returns logits. `worlds` keeps what jobs of one
world share, and makes observations; `settings` says what a job needs. `source`, `imports`, `calls`
and `cuda_on_cpu` load a framework's code and call it.
"""
