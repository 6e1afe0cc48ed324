#!/usr/bin/env python3
"""Models of pictures, sound and text as transformers writes them, tiny and random: `moe convert
--text-only` takes the text out, names what it leaves, and what it makes gives the log-probabilities
of the whole model for a text.
"""

import argparse
import os
import shutil
import sys

import torch
import transformers

import architectures
import cases
import delta_reference
import scores
import sizes

# In heads of 12 numbers six pairs turn, two along each axis.
QWEN2_VL = dict(
    sizes.DENSE,
    bos_token_id=None,
    eos_token_id=None,
    rope_parameters=dict(type="mrope", rope_theta=10000.0, mrope_section=[2, 2, 2]),
)
# Where transformers puts a text within a model of pictures it leaves out what divides or multiplies
# the logits; the engine computes the text as it is alone.
COHERE2 = dict(cases.CASES["cohere2"][1], model_type="cohere2", logit_scale=1.0)
# Named as transformers' classes; behind a dash which text, where it may be of several families.
TEXT = {
    "Qwen2VL": QWEN2_VL,
    "Qwen2_5_VL": QWEN2_VL,
    "Qwen3VL": dict(sizes.DENSE, head_dim=16),
    "InternVL": dict(sizes.EXPERTS, head_dim=16, norm_topk_prob=True, model_type="qwen3_moe"),
    "InternVL-gpt_oss": dict(cases.CASES["gpt_oss"][1], model_type="gpt_oss"),
    "DeepseekOcr2": dict(
        sizes.LLAMA_LIKE,
        n_routed_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        n_shared_experts=2,
        mlp_layer_types=["dense", "sparse", "sparse"],
    ),
    "Llava": dict(sizes.DENSE, model_type="llama"),
    "LlavaNext": dict(sizes.DENSE, model_type="mistral", sliding_window=100),
    "LlavaNext-granite": dict(sizes.DENSE_GRANITE, model_type="granite", logits_scaling=1.0),
    "LlavaOnevision": dict(sizes.DENSE, model_type="qwen2"),
    "LightOnOcr": dict(sizes.DENSE, head_dim=16, model_type="qwen3"),
    "Qwen3_5": cases.CASES["qwen3_5_text"][1],
    "Qwen3_5Moe": {
        key: size for key, size in sizes.LINEAR.items() if key != "intermediate_size"
    },
    "Gemma3": dict(
        sizes.DENSE,
        num_hidden_layers=7,
        head_dim=16,
        sliding_window=100,
        query_pre_attn_scalar=16,
    ),
    "Gemma4": sizes.GEMMA4,
    "Llama4": sizes.LLAMA4,
    "SmolVLM": dict(sizes.DENSE, model_type="llama"),
    "Idefics3": dict(sizes.DENSE, model_type="llama"),
    "Lfm2Vl": dict(cases.CASES["lfm2"][1], model_type="lfm2"),
    "Lfm3Vl": dict(cases.CASES["lfm3"][1], model_type="lfm3"),
    "MiniMaxM3VL": dict(sizes.MINIMAX_M3, index_topk_blocks=3),
    "Cohere2Vision": COHERE2,
    "AyaVision": COHERE2,
    "Qwen3VLMoe": dict(sizes.EXPERTS, head_dim=16),
    "Qwen3OmniMoe": dict(sizes.EXPERTS, head_dim=16),
    "Qwen2_5Omni": dict(
        QWEN2_VL,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 2, 2]),
    ),
    "Qwen2Audio": dict(sizes.DENSE, model_type="qwen2"),
    "Voxtral": dict(sizes.DENSE, model_type="llama", head_dim=16),
    "Glm4v": dict(  # whose heads are 128 wide, of which its config says nothing
        {key: size for key, size in sizes.LLAMA_LIKE.items() if key != "head_dim"},
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=None,
        rope_parameters=dict(
            rope_type="default",
            rope_theta=10000.0,
            partial_rotary_factor=0.5,
            mrope_section=[8, 12, 12],
        ),
    ),
    "Glm4vMoe": dict(
        sizes.SIGMOID,
        num_key_value_heads=2,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[1, 1, 2]),
    ),
}
QWEN_PICTURES = dict(
    depth=1,
    hidden_size=32,
    intermediate_size=64,
    num_heads=2,
    patch_size=4,
    out_hidden_size=48,
    num_position_embeddings=16,
)
SEES = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=16,
    patch_size=4,
)
GLM_PICTURES = dict(
    depth=1,
    hidden_size=32,
    intermediate_size=64,
    num_heads=2,
    patch_size=4,
    image_size=16,
    out_hidden_size=48,
)
PICTURES = {
    "Qwen2VL": dict(depth=1, embed_dim=32, hidden_size=48, num_heads=2, patch_size=4),
    "Qwen2_5_VL": {
        key: size for key, size in QWEN_PICTURES.items() if key != "num_position_embeddings"
    },
    "Qwen3VL": dict(QWEN_PICTURES, deepstack_visual_indexes=[0]),
    "InternVL": SEES,
    "InternVL-gpt_oss": SEES,
    "DeepseekOcr2": dict(
        sam_config=dict(
            hidden_size=32,
            output_channels=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=64,
            window_size=2,
            global_attn_indexes=[0],
            downsample_channels=[24, 32],
        ),
        encoder_config=dict(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            vocab_size=16,
        ),
    ),
    "Llava": dict(SEES, model_type="clip_vision_model"),
    "LlavaNext": dict(SEES, model_type="clip_vision_model"),
    "LlavaNext-granite": dict(SEES, model_type="siglip_vision_model"),
    "LlavaOnevision": dict(SEES, model_type="siglip_vision_model"),
    "LightOnOcr": dict(SEES, model_type="pixtral"),
    "Qwen3_5": QWEN_PICTURES,
    "Qwen3_5Moe": QWEN_PICTURES,
    "Gemma3": SEES,
    "SmolVLM": SEES,
    "Idefics3": SEES,
    "Lfm2Vl": dict(
        model_type="siglip2_vision_model",
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_patches=16,
        patch_size=4,
    ),
    "Lfm3Vl": dict(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        patch_size=4,
    ),
    "MiniMaxM3VL": SEES,
    "Cohere2Vision": dict(SEES, model_type="siglip_vision_model"),
    "AyaVision": dict(SEES, model_type="siglip_vision_model"),
    "Gemma4": dict(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        position_embedding_size=16,
        patch_size=4,
    ),
    "Llama4": dict(
        SEES,
        vision_output_dim=32,
        projector_input_dim=32,
        projector_output_dim=32,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    ),
    "Qwen3VLMoe": dict(QWEN_PICTURES, deepstack_visual_indexes=[0]),
    "Qwen3OmniMoe": dict(QWEN_PICTURES, deepstack_visual_indexes=[0]),
    "Qwen2_5Omni": {
        key: size for key, size in QWEN_PICTURES.items() if key != "num_position_embeddings"
    },
    "Glm4v": dict(GLM_PICTURES, out_hidden_size=128),
    "Glm4vMoe": GLM_PICTURES,
}


HEARS = dict(
    encoder_layers=1,
    encoder_attention_heads=2,
    encoder_ffn_dim=64,
    d_model=32,
    num_mel_bins=16,
)
SOUND = {
    "Qwen2_5Omni": dict(HEARS, output_dim=48),
    "Qwen3OmniMoe": dict(HEARS, output_dim=48, downsample_hidden_size=16),
    "Qwen2Audio": HEARS,
    # four frames of it make one token
    "Voxtral": dict(
        hidden_size=16,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_mel_bins=16,
    ),
}


# A class that is not called as its config.
CLASSES = {"MiniMaxM3VL": "MiniMaxM3SparseForConditionalGeneration"}


def model_of(family):
    torch.manual_seed(1)
    parts = dict(text_config=dict(TEXT[family]))  # Qwen2-VL's class writes in it
    for key, of in (("vision_config", PICTURES), ("audio_config", SOUND)):
        if family in of:
            parts[key] = dict(of[family])
    if family in ("Qwen2_5Omni", "Qwen3OmniMoe"):  # without the models that speak
        parts = dict(thinker_config=parts, enable_audio_output=False)
    name = family.split("-")[0]
    config = getattr(transformers, name + "Config")(**parts)
    class_name = CLASSES.get(name, name + "ForConditionalGeneration")
    model = getattr(transformers, class_name)(config).eval()
    architectures.randomise(model)
    return model


def check(moe, family, tokenizer):
    folder = os.path.join(moe.work, family)
    text = folder + "-text"
    model = model_of(family)
    model.save_pretrained(folder)
    shutil.copy(tokenizer, os.path.join(folder, "tokenizer.json"))
    account = moe.run("convert", folder, text, "--text-only", "--json", to=text + ".account")
    tower = "a tower for pictures" if family in PICTURES else "a tower for sound"
    with open(account, encoding="utf-8") as file:
        named = tower in file.read()
    print(f"{family}: the account names {'what is left out' if named else 'NOTHING'}")
    model = getattr(model, "thinker", model)
    layers = getattr(model, "model", model)
    layers = getattr(layers, "language_model", layers)
    if delta_reference.takes(layers):
        delta_reference.compute_in_double(model, layers)
    same = scores.compare(
        family + ", its text alone",
        lambda ids: model(input_ids=ids, use_cache=False).logits,
        moe.score(text),
        architectures.WINDOW,
    )
    return named and same == 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    architectures.add_arguments(parser)
    args = parser.parse_args()
    moe = architectures.Moe(args)
    results = [check(moe, family, args.tokenizer) for family in TEXT]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
