"""What every adapter needs: the probe in torch, sources of a framework, imports with stubs.

In comes a framework's checkout, commit or wheel; out come imported modules and probed tensors.
Nothing here knows a framework.
"""
