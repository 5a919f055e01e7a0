"""The vocabulary: verdicts, findings, reports and the words in which they are told.

Nothing of the project comes in but the adapters' contract; every other room takes its data types
from here. `report` is the document and its schema, `badness` says how wrong a finding is,
`sanitize` cleans text from outside, `errors` lists what can go wrong in the
order of a run, `harness` notices where the reference contradicts itself.
"""
