"""What must not matter: changes of a training step that leave its gradients and its log alone.

In comes a step; out come the same step changed, with names by which its tokens are found again, and
what may change with it. No formula is needed: two runs of the framework are compared.
"""
