"""Pages about the committed reports.

``python -m conformance.views.overview`` writes these pages from the reports only: README.md's
table, reports/causes.md, reports/README.md, and docs/frameworks.md, with the data of
`conformance.comparing.reductions`. For the newest version of each engine it writes a bug report in
reports/issues/ for each mistake, and the web page reports/index.html. It also writes
docs/options.md, from the records of frameworks. Findings are never edited: `rederive` only derives
the causes of committed reports again.
"""
