"""Folders in the true layout of google/siglip2-* and of sentence-transformers/all-MiniLM-L6-v2, small, of random weights."""

from __future__ import annotations

import json
from pathlib import Path

SAMPLE = (
    "a photo of the red harbor at night, product with green lamp, it is not what the garden showed".split()
)


def siglip2(folder: Path, *, seed: int = 0) -> Path:
    """SigLIP2 of a fixed size: `model_type` siglip, Gemma's tokenizer padded to 64 places, an end token and no beginning."""
    import torch
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import SiglipConfig, SiglipModel

    bpe = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    bpe.normalizer = normalizers.Replace(" ", "▁")
    bpe.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    bpe.train_from_iterator([*SAMPLE, *(word.title() for word in SAMPLE)] * 3, trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single="$A <eos>", pair="$A <eos> $B <eos>", special_tokens=[("<eos>", 1)]
    )
    bpe.enable_padding(direction="right", pad_id=0, pad_token="<pad>", length=64)
    folder.mkdir(parents=True, exist_ok=True)
    bpe.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        dict(
            add_bos_token=False,
            add_eos_token=True,
            bos_token="<bos>",
            eos_token="<eos>",
            mask_token="<mask>",
            pad_token="<pad>",
            unk_token="<unk>",
            model_max_length=10**30,
            processor_class="SiglipProcessor",
            tokenizer_class="GemmaTokenizer",
        ),
    )
    _write(
        folder / "preprocessor_config.json",
        dict(
            do_convert_rgb=None,
            do_normalize=True,
            do_rescale=True,
            do_resize=True,
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
            image_processor_type="SiglipImageProcessor",
            processor_class="SiglipProcessor",
            resample=2,
            rescale_factor=1 / 255,
            size=dict(height=32, width=32),
        ),
    )
    sides = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    torch.manual_seed(seed)
    config = SiglipConfig(
        text_config=dict(vocab_size=bpe.get_vocab_size(), **sides),
        vision_config=dict(image_size=32, patch_size=8, **sides),
    )
    _widened(SiglipModel(config)).save_pretrained(folder)
    about = json.loads((folder / "config.json").read_text())
    for end in ("bos_token_id", "eos_token_id", "pad_token_id"):  # the hub's configurations have none
        about["text_config"].pop(end, None)
    _write(folder / "config.json", about)
    return folder


def minilm(folder: Path, *, seed: int = 0, most: int = 24, pooling: str = "mean") -> Path:
    """A BERT with the files that sentence-transformers puts beside it; `most` tokens a text."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertModel

    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer(lowercase=True)
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces.train_from_iterator(
        [" ".join(SAMPLE), "abcdefghijklmnopqrstuvwxyz 0123456789"] * 3,
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False),
    )
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    pieces.enable_truncation(16)  # what the hub's tokenizer.json has, shorter than the model is to read
    pieces.enable_padding(length=16, pad_id=0, pad_token="[PAD]")
    folder.mkdir(parents=True, exist_ok=True)
    pieces.save(str(folder / "tokenizer.json"))
    names = dict(
        unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]"
    )
    about = dict(do_lower_case=True, model_max_length=512, tokenizer_class="BertTokenizer")
    _write(folder / "tokenizer_config.json", names | about)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=pieces.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    _widened(BertModel(config)).save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    named = [
        dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
        for i, (path, kind) in enumerate(modules)
    ]
    _write(folder / "modules.json", named)
    _write(folder / "sentence_bert_config.json", dict(max_seq_length=most, do_lower_case=False))
    ways = {
        f"pooling_mode_{way}": way == f"{pooling}_tokens"
        for way in ("cls_token", "mean_tokens", "max_tokens")
    }
    ways["pooling_mode_cls_token"] = pooling == "cls"
    (folder / "1_Pooling").mkdir(exist_ok=True)
    _write(folder / "1_Pooling" / "config.json", dict(word_embedding_dimension=32, **ways))
    return folder


def _widened(model):
    """Weights wide enough that vectors vary with what is read."""
    import torch

    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=1.5 * weight[0].numel() ** -0.5)
    return model


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1))
