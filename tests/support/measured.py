"""Models whose usable length is known by construction, and texts on which it shows."""

from random import Random

import torch
from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_posenc import PosEncCausalConfig, PosEncForCausalLM

ASCII = ["\n", *map(chr, range(32, 127))]
SYMBOLS = [chr(0x4E00 + number) for number in range(600)]
WIDTH = 64  # of a token's embedding
LENGTHS = [32, 64, 128, 256]
PERIODS = (12, 40, 90, 180)  # tokens: each within one of the lengths


def character_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each character, so that texts have known lengths."""
    characters = ["<pad>", "<unk>", *ASCII, *SYMBOLS]
    backend = Tokenizer(WordLevel({character: number for number, character in enumerate(characters)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>")


def periodic_texts(length: int, per_period: int = 4) -> list[str]:
    """Random strings that repeat with a period: to predict one, a model must read as far as its period."""
    rng, texts = Random(0), []
    for _ in range(per_period):
        for period in PERIODS:
            string = "".join(rng.sample(SYMBOLS, k=period))
            texts.append((string * (length // period + 1))[:length])
    return texts


def vocabulary() -> int:
    return 2 + len(ASCII) + len(SYMBOLS)


def random_directions(seed: int = 0) -> Tensor:
    """A direction for each token (V, WIDTH): unit vectors of mean 0."""
    torch.manual_seed(seed)
    directions = torch.randn(vocabulary(), WIDTH)
    return nn.functional.normalize(directions - directions.mean(1, keepdim=True), dim=1)


class CopyConfig(PreTrainedConfig):
    model_type = "copy_by_construction"
    num_hidden_layers: int = 1
    window: int = 10**9
    vocab_size: int = 2
    max_position_embeddings: int = 128


class CopyModel(PreTrainedModel, GenerationMixin):
    """Predicts what followed the longest match of its last tokens, among the `window` tokens before. Random weights."""

    config_class = CopyConfig

    def __init__(self, config: CopyConfig) -> None:
        super().__init__(config)
        self.directions = nn.Parameter(random_directions())
        self.post_init()

    def forward(self, input_ids: Tensor, **kwargs: object) -> CausalLMOutputWithPast:
        return CausalLMOutputWithPast(logits=torch.stack([self.logits(ids_T) for ids_T in input_ids]))

    def logits(self, ids_T: Tensor) -> Tensor:
        matched_T, rows = torch.zeros(len(ids_T), dtype=torch.long), []
        places_T = torch.arange(len(ids_T))
        for place, token in enumerate(ids_T):
            matched_T = torch.where(ids_T == token, 1 + nn.functional.pad(matched_T, (1, -1)), 0)
            is_read_T = (places_T < place) & (places_T >= place - self.config.window)
            best = int(torch.where(is_read_T, matched_T * len(ids_T) + places_T, -1).argmax())
            has_match = bool(is_read_T[best]) and bool(matched_T[best])
            following = self.directions[ids_T[best + 1]] if has_match else torch.zeros(WIDTH)
            rows.append(20 * following @ self.directions.T)
        return torch.stack(rows)


def copy_model(window: int) -> CopyModel:
    model = CopyModel(CopyConfig(window=window, vocab_size=vocabulary())).eval()
    model.generation_config.use_cache = False
    return model


@torch.no_grad()
def induction_model(encoding: str, **fields: object) -> PosEncForCausalLM:
    """Two layers that predict what followed the last token before, wherever `encoding` lets them see it.

    The first layer writes each token's predecessor next to it: a T5 bias hides all other distances. The second one
    looks the last token up among the predecessors, and copies the token that stands there.
    """
    config = PosEncCausalConfig(
        vocab_size=vocabulary(), hidden_size=3 * WIDTH, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=8, position_encoding_type=encoding, **fields,
    )  # fmt: skip
    model = PosEncForCausalLM(config).eval()
    directions = random_directions()
    for parameter in model.parameters():
        parameter.zero_()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.fill_(1.0)
    token, before, output = (slice(start, start + WIDTH) for start in (0, WIDTH, 2 * WIDTH))
    head = 3 * WIDTH // 2
    identity = torch.eye(WIDTH)
    model.model.embed_tokens.weight[:, token] = directions
    model.lm_head.weight[:, output] = 3 * directions
    table = next(parameter for name, parameter in model.named_parameters() if name.endswith("table"))
    table[1, 0] = 1000.0  # distance 1 for the first head
    previous, lookup = (layer.self_attn for layer in model.model.layers)
    previous.v_proj.weight[:WIDTH, token] = identity
    previous.out_proj.weight[before, :WIDTH] = identity
    lookup.q_proj.weight[head : head + WIDTH, token] = 10 * identity
    lookup.k_proj.weight[head : head + WIDTH, before] = 10 * identity
    lookup.v_proj.weight[head : head + WIDTH, token] = identity
    lookup.out_proj.weight[output, head : head + WIDTH] = identity
    return model
