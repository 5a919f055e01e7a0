"""Laws: changes of a training step that must leave its gradients and its log alone.

In comes a job; out comes the same job changed, with names by which tokens are found again in both.
No formula is needed: two runs of the framework are compared.
"""
