"""Pages: one HTML file each that needs no network and no server.

An analysis, a difference or the rows of many models come in, the text of a page goes out; without
its script a page shows the same figures at the requested batch. Begin with ``model_page``, then
``markup``, the pieces of all pages; ``stops`` and ``timeline`` are what the batch's slider moves.
"""
