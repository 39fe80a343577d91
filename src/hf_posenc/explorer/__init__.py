"""The explorer, a page in the browser. `page.py` serves it and, with `tabs_encoding.py` (See, Step), `tabs_run.py`
(Translate, Compare), `tabs_stream.py` (Stream), `widgets.py` and `events.py`, knows gradio; no other module here does.

What they show comes from `state.py` and `encoding_views.py` (See), `walkthrough.py` (Step) and `runs.py` (Translate,
Compare), `streaming_view.py` (Stream), and is written down by `html.py`, with figures as `render.py` makes them.
"""
