"""The explorer as a Space: of the run in the folder `run` beside this file, if there is one."""

from pathlib import Path

from hf_posenc.lab.explorer.page import launch
from hf_posenc.lab.explorer.runs import ExplorerRun

RUN = Path(__file__).parent / "run"

launch(ExplorerRun(RUN if RUN.is_dir() else None))
