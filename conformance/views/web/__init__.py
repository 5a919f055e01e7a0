"""Reports as one self-contained web page.

The input is reports; the output is an HTML file with their causes, matrix, timelines and pictures.
``page_parts`` has the page's scripts and style.
"""
