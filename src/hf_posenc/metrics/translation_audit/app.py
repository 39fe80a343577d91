"""The page of the metric as a Space of the Hub."""

import evaluate
from evaluate.utils import launch_gradio_widget

launch_gradio_widget(evaluate.load("translation_audit.py"))
