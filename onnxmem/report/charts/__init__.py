"""Charts: plain numbers in, the text of an SVG out; no chart knows what an analysis is.

Every element has a class for a page's style sheet and that class's color as an attribute, which
any style sheet overrides: the same SVG stands alone, in a notebook or in a README, without inline
styles or scripts, and names are made printable, cut and escaped here. Begin with ``drawing``, the
pieces of all charts; ``steps`` has those over the steps of a program, ``sizes`` those of items.
"""
