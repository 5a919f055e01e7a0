"""The facts that a cause's condition is made of, and how they are said.

A fact is a phrase that a statement can end with, true of a finding, of its step or of how the step
was cut.
"""
