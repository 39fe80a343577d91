# SPDX-License-Identifier: Apache-2.0
"""The version of this code, saved with every checkpoint, and the newest transformers it was tested with."""

__version__ = "0.3.0.dev0"

# The newest minor version of transformers on which all tests passed; .ci/run says when the registry has a newer one.
NEWEST_TESTED_TRANSFORMERS = (5, 24)


def untested_transformers_warning(installed: str | None = None) -> str | None:
    """One line that says so if the installed transformers has a newer minor version than any tested; else None.

    `installed` is the version of transformers, by default that of the installed one.
    """
    if installed is None:
        import transformers  # here, because `hf-posenc --version` needs none of it

        installed = transformers.__version__
    major, minor = (int(number) for number in installed.split(".")[:2])
    if (major, minor) <= NEWEST_TESTED_TRANSFORMERS:
        return None
    newest = ".".join(map(str, NEWEST_TESTED_TRANSFORMERS))
    return (
        f"Warning: hf_posenc {__version__} was tested on transformers up to {newest}, but {installed} is installed; "
        f"check results against an environment with transformers=={newest}.*, or update hf_posenc."
    )
