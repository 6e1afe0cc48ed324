"""The tiny models of cases.py that have no experts and whose norms are LayerNorms."""

from sizes import DENSE

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
    "olmo": ("OlmoConfig", dict(DENSE, pad_token_id=None)),
    "olmo-clipped": ("OlmoConfig", dict(DENSE, pad_token_id=None, clip_qkv=1.5, tie_word_embeddings=True)),
    "olmo-biases": ("OlmoConfig", dict(DENSE, pad_token_id=None, attention_bias=True)),
}
# As NOT_FOR_LLAMA_CPP of cases.py.
DENSE_NOT_FOR_LLAMA_CPP = {
    "cohere-bias": "queries, keys and values have biases",
    "olmo-biases": "queries, keys and values have biases",
}
