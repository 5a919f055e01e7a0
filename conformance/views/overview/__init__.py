"""Pages about the committed reports.

``python -m conformance.views.overview`` writes them from the reports alone: README.md's table,
reports/causes.md, reports/README.md, a bug report in reports/issues/ for each cause of the newest
version of each engine, and docs/frameworks.md, with what `conformance.comparing.conversion` reads.
"""
