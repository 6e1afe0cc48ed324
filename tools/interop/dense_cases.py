"""Some of the tiny models of cases.py that have no experts: those with LayerNorms, and kin of Llama
and Gemma 2."""

from sizes import DENSE, LATENT, LLAMA3

OLMO = dict(DENSE, pad_token_id=None)
# There is no number of key/value heads.
NEOX = {key: size for key, size in DENSE.items() if key != "num_key_value_heads"}
NEOX.update(rotary_pct=0.5)
VAULT = dict(
    DENSE,
    num_hidden_layers=3,
    head_dim=16,
    sliding_window=100,
    query_pre_attn_scalar=16,
    attn_logit_softcapping=1.5,
    final_logit_softcapping=2.0,
)
MINICPM3 = {
    key: size
    for key, size in dict(LATENT, q_lora_rank=24).items()
    if key in DENSE or key.startswith(("qk_", "kv_", "q_", "v_"))
}
MINICPM3.update(scale_emb=3, scale_depth=1.4, dim_model_base=24)

DENSE_CASES = {
    "stablelm": (
        "StableLmConfig",
        dict(DENSE, use_qkv_bias=True, partial_rotary_factor=0.5),
    ),
    "starcoder2": ("Starcoder2Config", dict(DENSE, sliding_window=None)),
    "cohere": ("CohereConfig", dict(DENSE, pad_token_id=None, logit_scale=0.25)),
    "cohere-bias": (
        "CohereConfig",
        dict(DENSE, pad_token_id=None, logit_scale=0.3, attention_bias=True),
    ),
    "cohere2": (
        "Cohere2Config",
        dict(DENSE, num_hidden_layers=4, pad_token_id=None, sliding_window=100),
    ),
    "olmo": ("OlmoConfig", OLMO),
    "olmo-clipped": ("OlmoConfig", dict(OLMO, clip_qkv=1.5, tie_word_embeddings=True)),
    "olmo-biases": ("OlmoConfig", dict(OLMO, attention_bias=True)),
    "jais2": ("Jais2Config", dict(DENSE, head_dim=16)),
    "jais2-bare": ("Jais2Config", dict(DENSE, attention_bias=False, tie_word_embeddings=True)),
    "gpt_neox": ("GPTNeoXConfig", NEOX),
    "gpt_neox-tanh": ("GPTNeoXConfig", dict(NEOX, hidden_act="gelu_pytorch_tanh")),
    "gpt_neox-sequential": (
        "GPTNeoXConfig",
        dict(NEOX, hidden_act="gelu_pytorch_tanh", use_parallel_residual=False),
    ),
    "gpt_neox-bare": (
        "GPTNeoXConfig",
        dict(NEOX, rotary_pct=1.0, attention_bias=False, tie_word_embeddings=True),
    ),
    "phi": ("PhiConfig", DENSE),
    "phi-whole": ("PhiConfig", dict(DENSE, partial_rotary_factor=1.0, tie_word_embeddings=True)),
    "cwm": (
        "CwmConfig",
        dict(
            DENSE, num_hidden_layers=4, head_dim=16, sliding_window=100, rope_parameters=LLAMA3
        ),
    ),
    "ministral": (
        "MinistralConfig",
        dict(
            DENSE,
            num_hidden_layers=3,
            head_dim=16,
            sliding_window=100,
            layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        ),
    ),
    "ministral-whole": (
        "MinistralConfig",
        dict(DENSE, head_dim=16, sliding_window=100, layer_types=["full_attention"] * 2),
    ),
    "iquestcoder": ("IQuestCoderConfig", dict(DENSE, head_dim=16)),
    "iquestcoder-biases": (
        "IQuestCoderConfig",
        dict(DENSE, head_dim=12, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "minicpm3": ("MiniCPM3Config", MINICPM3),
    "minicpm3-plain": (
        "MiniCPM3Config",
        dict(
            MINICPM3,
            q_lora_rank=None,
            scale_depth=None,
            dim_model_base=None,
            tie_word_embeddings=False,
        ),
    ),
    "vaultgemma": ("VaultGemmaConfig", VAULT),
    "vaultgemma-free": (
        "VaultGemmaConfig",
        dict(VAULT, attn_logit_softcapping=None, final_logit_softcapping=None),
    ),
}
