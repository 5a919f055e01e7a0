"""The data types of verdicts, findings and reports.

This package imports only the adapters' contract and the reference. `report` is the document and its
schema, `badness` orders findings, `sanitize` cleans text from outside, `errors` lists the
exceptions in the order of a run.
"""
