"""Pages about the committed reports.

``python -m conformance.views.overview`` writes them from the reports alone: README.md's table,
reports/causes.md, reports/README.md, and docs/frameworks.md, with what
`conformance.comparing.reductions` reads. Of the newest version of each engine they are a bug report
in reports/issues/ for each mistake, and the web page reports/index.html. It also writes
docs/options.md, from the records of frameworks. Findings are never edited: `rederive` makes only
the causes of committed reports anew.
"""
