# SPDX-License-Identifier: Apache-2.0
"""The version of this code: it travels with a checkpoint, whose config says which one wrote it."""

__version__ = "0.2.0"
