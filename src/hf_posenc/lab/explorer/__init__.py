"""The explorer, a page in the browser. `page.py` serves it and, with `tabs.py`, uses gradio; no other module here does.

The tabs' content comes from `views.py` (Length, See, Step, Stream) and `runs.py` (Translate). `html.py` formats it,
and renders the figures.
"""
