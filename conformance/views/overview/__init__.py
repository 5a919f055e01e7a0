"""Pages about the committed reports.

``python -m conformance.views.overview`` writes them from the reports alone: README.md's table,
reports/causes.md, reports/README.md, and docs/frameworks.md, with what
`conformance.views.conversion` reads. Of the newest version of each engine they are a bug report in
reports/issues/ for each cause, and the web page reports/index.html. It also writes docs/options.md,
from the records of frameworks. Reports are never edited by hand: where a sentence of ours is put
better, `reword` rewrites it in them.
"""
