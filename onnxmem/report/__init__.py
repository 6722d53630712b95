"""An analysis, and what follows from it, as text, JSON, CSV and pages: pure functions to text.

What comes in is an ``Analysis`` or a result of ``decisions`` and ``collection``; what goes out is a
text, or plain values of the JSON contract. Begin with ``terminal``, the text report, then
``sections``, its parts, which the page shares; ``text`` has what all texts are laid out by.
"""
