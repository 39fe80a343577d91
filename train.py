"""Train the systems of a config file, score them by source length and compare them, as `hf-posenc train` does.

    python train.py configs/quickstart.yaml [dotted.key=value ...] [--dry-run]
    accelerate launch --config_file configs/accelerate/eight_gpus.yaml train.py CONFIG

Finished systems are skipped and interrupted ones resumed, so the same command can be given again at any time.
"""

import sys

if __name__ == "__main__":
    # By this name the package parses the arguments before it imports torch, which takes seconds.
    sys.argv[:1] = ["hf-posenc", "train"]
    from hf_posenc.__main__ import main

    main()
