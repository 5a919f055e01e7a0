"""Training engines that several frameworks share, one module for each.

In comes a job's layout; out come models that carry the probe and readers of its gradient.
"""
