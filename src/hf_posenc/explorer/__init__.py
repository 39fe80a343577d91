"""The explorer, a page in the browser. `page.py` serves it and, with `tabs_encoding.py` (See, Step), `tabs_run.py`
(Translate, Compare), `controls.py` and `live.py`, knows gradio; no other module here does.

What they show comes from `choice.py` and `pictures.py` (See), `steps.py` (Step) and `runs.py` (Translate, Compare),
and is written down by `html.py`, with figures as `drawing.py` makes them.
"""
