"""Folders of Hugging Face, made small: a word is a token, and the weights are drawn.

from huggingface_models import small_model
small_model(folder, transformers.BertForSequenceClassification)
"""

from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS: Final = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "text", "good", "bad", "day"]
_SIZES: Final = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


def small_model(folder: Path, kind: Any, *, safe: bool = True) -> Path:
    """Save a model of the class `kind`, of Bert or ViT or Wav2Vec2, with what prepares its rows."""
    torch.manual_seed(0)
    name = kind.__name__
    if name.startswith("ViT"):
        config: Any = transformers.ViTConfig(**_SIZES, image_size=32, patch_size=16)
        transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    elif name.startswith("Wav2Vec2"):
        config = transformers.Wav2Vec2Config(
            **_SIZES, vocab_size=8, conv_dim=[8, 8], conv_kernel=[10, 3], conv_stride=[5, 2],
            num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        )  # fmt: skip
        transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
        letters = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *"|abc"])}
        (folder / "vocab.json").write_text(str(letters).replace("'", '"'))
        transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    else:
        config = transformers.BertConfig(
            **_SIZES, vocab_size=len(WORDS), max_position_embeddings=32
        )
        pad, unknown = WORDS[:2]
        words = models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=unknown)
        tokenizer = Tokenizer(words)
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token=unknown, pad_token=pad
        ).save_pretrained(folder)
    model = kind(config).eval()
    model.save_pretrained(folder)
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder
