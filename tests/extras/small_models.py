"""Models of other libraries from configurations, at the smallest sizes, and data for them; nothing is downloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch import nn

import moiety as mo

WORDS, LENGTH, CLASSES, SIDE = 24, 6, 2, 16
SIZES: dict[str, Any] = {"vocab_size": WORDS, "num_labels": CLASSES}
BERT = {
    **SIZES,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))


def roberta() -> nn.Module:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**BERT))


def distilbert() -> nn.Module:
    sizes = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 16}
    still = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    config = transformers.DistilBertConfig(**SIZES, **sizes, **still)
    return transformers.DistilBertForSequenceClassification(config)


GPT2 = {**SIZES, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "pad_token_id": 0}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 1}


def gpt2() -> nn.Module:
    return transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**GPT2))


LLAMA = {**SIZES, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
LLAMA |= {"num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}


def llama() -> nn.Module:
    return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**LLAMA))


def vit() -> nn.Module:
    sizes = {name: size for name, size in BERT.items() if name not in ("vocab_size", "max_position_embeddings")}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, image_size=SIDE, patch_size=8))


def resnet18() -> nn.Module:
    return torchvision.models.resnet18(num_classes=CLASSES)


def mobilenet() -> nn.Module:
    # Its maps have one pixel here, so variances are of two or three values, and near 0 now and then. With torch's own
    # eps of 1e-5, parameters changed by 1e-15 end 3,000 apart after four steps of torch alone; with this one, 1e-11.
    norm = functools.partial(nn.BatchNorm2d, eps=0.1)
    return torchvision.models.mobilenet_v2(num_classes=CLASSES, width_mult=0.1, dropout=0.0, norm_layer=norm)


def timm_vit() -> nn.Module:
    sizes = {"img_size": SIDE, "patch_size": 8, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    return timm.models.vision_transformer.VisionTransformer(**sizes)


class Case(NamedTuple):
    """A model, the column that goes into it, the layers that PEFT adapts, and targets where none are recognised."""

    model: Callable[[], nn.Module]
    column: str
    peft: list[str]
    lora: str = "*"
    adapters: str = ""


CASES = {
    "BERT": Case(bert, "input_ids", ["query", "value"]),
    "RoBERTa": Case(roberta, "input_ids", ["query", "value"]),
    "DistilBERT": Case(distilbert, "input_ids", ["q_lin", "v_lin"]),
    "GPT-2": Case(gpt2, "input_ids", ["c_attn"]),
    "Llama": Case(llama, "input_ids", ["q_proj", "v_proj"]),
    "ViT": Case(vit, "pixel_values", ["q_proj", "v_proj"]),
    "resnet18": Case(resnet18, "x", ["layer1.0.conv1"], lora="layer1"),
    "MobileNet": Case(mobilenet, "x", ["features.18.0"], lora="features.18", adapters="features.18.0"),
    "timm ViT": Case(timm_vit, "x", ["qkv"]),
}


def make(name: str, seed: int = 0) -> nn.Module:
    """The model of a case, with values from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CASES[name].model()


def data(column: str, clients: int = 3, rows: int = 5) -> mo.data.FederatedData:
    """A few rows of each client, tokens with an attention mask or pictures, whose labels can be learnt."""
    rng = np.random.default_rng(0)
    count = clients * rows
    y = rng.integers(0, CLASSES, count)
    columns: dict[str, Any] = {"y": y}
    if column == "input_ids":
        columns[column] = rng.integers(2, WORDS // 2, (count, LENGTH)) + (WORDS // 2 - 2) * y[:, None]
        columns["attention_mask"] = np.ones((count, LENGTH), dtype=np.int64)
        columns["attention_mask"][::3, -2:] = 0
    else:
        columns[column] = (rng.normal(size=(count, 3, SIDE, SIDE)) + y[:, None, None, None]).astype(np.float32)
    return mo.data.from_arrays(columns, client=np.repeat(np.arange(clients), rows), test=0.2, seed=0)
