"""Charts: plain numbers in, the text of an SVG out. No chart knows what an analysis is.

Every element has a class, for a page's style sheet, and the colour of that class as an attribute,
which any style sheet overrides: so the same SVG stands alone, in a notebook or a README. Words and
lines are ``currentColor``. Nothing in a chart needs an inline style or a script.

Names come from models: they are made printable, cut and escaped here. What draws an SVG is imported
where one is drawn.
"""
