"""The explorer, a page in the browser: `page.py` serves it, and only `page.py`, `tabs.py` and `live.py`
know gradio.

What it shows is made by pure functions: `pictures.py` (See), `steps.py` (Step), `runs.py` (Translate, Compare);
`html.py` writes it down.
"""
