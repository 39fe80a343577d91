"""Transformers models whose position encoding is picked by name, and measured by length.

PosEncForConditionalGeneration is an encoder-decoder, PosEncForCausalLM a decoder-only model, and RNN-NMT a recurrent
baseline. Importing this package registers them with AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForCausalLM
and AutoTokenizer.

Importing, loading and generating need torch, transformers and tokenizers alone. Other packages are imported where they
are used: training and scoring need all of the project's dependencies, figures and exports their extras.
"""

from typing import TYPE_CHECKING

from .utils.command_line import is_command_line

if TYPE_CHECKING or not is_command_line():
    from .api import *  # noqa: F403
    from .api import __all__ as __all__

    for _module in ("api", "auto_classes"):  # dir() shows __all__ and packages
        del globals()[_module]
    del _module
else:
    # The command line parses its arguments first. The API, whose imports take seconds, is imported after it, or with
    # the first of its names.
    import signal

    from .utils.command_line import import_public_name as __getattr__  # noqa: F401  Python calls it

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command begins, Ctrl-C ends it without a traceback
    del signal


del TYPE_CHECKING, is_command_line
