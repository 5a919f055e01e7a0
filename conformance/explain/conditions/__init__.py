"""The facts that make up a cause's condition, and their wording.

A fact is a phrase that is true of a finding, of its step or of how the step was cut, and that can
end a statement.
"""
