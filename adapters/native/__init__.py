"""Plain PyTorch, exact in every cell: the example to copy for an adapter of one's own.

`adapter` is the contract's part; `trainer` is a small training framework with startup options
(`options`) and logs (`logs`) of its own.
"""
