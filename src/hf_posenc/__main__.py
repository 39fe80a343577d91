"""`python -m hf_posenc`, which is also the console script `hf-posenc`: the command line of `lab/cli.py`."""

from hf_posenc.lab.cli import main

if __name__ == "__main__":
    main()
