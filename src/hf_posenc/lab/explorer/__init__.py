"""The explorer, a page in the browser. `page.py` serves it and, with `tabs_encoding.py` (See, Step), `tabs_run.py`
(Translate, Compare), `tabs_stream.py` (Stream) and `widgets.py`, uses gradio; no other module here does.

Their content comes from `state.py` and `encoding_views.py` (See), `walkthrough.py` (Step), `runs.py` (Translate,
Compare) and `streaming_view.py` (Stream). `html.py` formats it, and `render.py` renders the figures.
"""
