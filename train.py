"""Train the systems of a config file, score them by source length and compare them, as `hf-posenc train` does.

    python train.py configs/quickstart.yaml [dotted.key=value ...] [--dry-run]
    accelerate launch --config_file configs/accelerate/eight_gpus.yaml train.py CONFIG

Finished systems are skipped and interrupted ones resumed, so the same command can be given again at any time.
"""

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `main`, Ctrl-C ends the imports without a traceback

from hf_posenc.lab.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
