"""Laws: changes of a training step that must not change its gradients or its log.

A law takes a job and returns the changed job; named tokens can be found in both. No formula is
needed, since two runs of the framework are compared.
"""
