"""Saved results, encodings and models -> figures, all in one style."""

try:
    import matplotlib as matplotlib
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        'Figures need the extra "plots", but matplotlib is not installed; '
        "run `pip install 'hf-posenc[plots]'`, in a clone `pip install '.[plots]'`.",
        name="matplotlib",
    ) from None
