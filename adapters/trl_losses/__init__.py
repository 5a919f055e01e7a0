"""Loss functions of libraries that users run instead of TRL's loss, at depth `loss`.

`adapter` cuts a step into a trainer's micro-batches and calls a loss function on each; `liger` and
`unsloth` name the function and its arguments.
"""
