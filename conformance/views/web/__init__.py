"""Reports as one web page that needs nothing else.

In come reports; out comes an HTML file with their causes, matrix, timelines and pictures. What its
script and style are is in ``page_parts``.
"""
