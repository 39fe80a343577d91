"""Cost of a config file, per system: parameters, steps, tokens and disk. Reads no data and writes nothing."""

from collections.abc import Sequence
from math import ceil, prod
from typing import cast

from ...encodings.base import StackSpec
from ..config.settings import Experiment, Segmentation, System
from ..results.tables import Table
from ..training.arguments import arguments_with_defaults
from .initialization import build_meta_model
from .prepare import validated_arguments

EMBEDDING_PARAMETERS = ("shared.", "embed_tokens.", "lm_head.", "final_logits_bias")
ADAM_MOMENTS = 2  # values that Adam stores for each parameter


def dry_run(experiment: Experiment, processes: int = 1) -> Table:
    """The table of costs, with one row for each system."""
    systems = experiment.systems.values()
    arguments = validated_arguments(systems, experiment.paths)
    limits = [args.save_total_limit for args in arguments.values()]
    rows = [
        [system.name, *(untrained_costs(system.segment) if system.segment else system_costs(system, processes, limit))]
        for system, limit in zip(systems, limits, strict=True)
    ]
    headers = ["system", "encoding", "parameters", "in the body", "steps", "tokens at most", "model", "checkpoints"]
    trainings = sum(not system.segment for system in systems)
    legend = (
        f"{experiment.folder}: {trainings} trainings; the body is all but embeddings and output projection; tokens of "
        f"both sides, padding included, in {processes} process{'es' if processes > 1 else ''}; the model in float32, "
        "checkpoints with the optimiser's state; a tokenizer that is adopted is taken to have data.vocab_size subwords"
    )
    return Table(headers, rows, legend)


def system_costs(system: System, processes: int, limit: int | None) -> list[str]:
    """The cells of a system's row after its name. `limit` is the number of checkpoints to keep, None for all."""
    model = build_meta_model(system)
    unique_parameters = dict(model.named_parameters())  # tied parameters are counted once
    total = sum(prod(parameter.shape) for parameter in unique_parameters.values())
    body = sum(
        prod(parameter.shape)
        for name, parameter in unique_parameters.items()
        if not any(key in name for key in EMBEDDING_PARAMETERS)
    )
    arguments = arguments_with_defaults(system.train)
    steps = arguments["max_steps"] if arguments["max_steps"] >= 0 else None
    batch = arguments["tokens_per_batch"]
    if batch is None and system.data.max_length:
        batch = arguments["per_device_train_batch_size"] * (system.data.max_length + (not system.data.is_text))
    sides = 1 if system.data.is_text else 2
    tokens = (
        f"{sides * steps * batch * arguments['gradient_accumulation_steps'] * processes:,}"
        if steps is not None and batch
        else "unknown"
    )
    kept = max(limit, 1 + arguments["load_best_model_at_end"]) if limit and limit > 0 else "all"  # as in the Trainer
    stacks = cast(Sequence[StackSpec], model.config.sides)
    encodings = [f"cross {side.encoding}" if side.name == "cross" else side.encoding for side in stacks]
    return [
        " / ".join(dict.fromkeys(encodings)) or model.config.model_type,
        f"{total:,}",
        f"{body:,}",
        f"{steps:,}" if steps is not None else f"{arguments['num_train_epochs']:g} epochs",
        tokens,
        format_megabytes(4 * total),
        f"{kept} of {format_megabytes(4 * total * (1 + ADAM_MOMENTS))}",
    ]


def untrained_costs(segment: Segmentation) -> list[str]:
    """The cells of a system that trains no model."""
    return [f"{segment.system}'s, by {segment} segments", *["-"] * 6]


def format_megabytes(number: int) -> str:
    return f"{ceil(number / 1e6):,} MB"
