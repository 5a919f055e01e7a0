"""Plain PyTorch, exact in every check: the example for writing an adapter.

`adapter` implements the contract; `trainer` is a small training framework with its own startup
`options`.
"""
