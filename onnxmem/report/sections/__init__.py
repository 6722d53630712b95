"""What is reported of an analysis: sections of lines, written once for the text and for the page.

An ``Analysis`` comes in; a tuple of ``Section`` goes out, a function per topic. ``report.terminal``
lays them out in columns, ``report.page`` as tables. Begin with ``section.py``, then ``listing.py``.
"""
