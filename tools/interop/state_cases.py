"""Those of the tiny models of cases.py that have state spaces, and OLMo Hybrid."""

from sizes import BAMBA, FALCON_H1, GRANITE_HYBRID, JAMBA, NEMOTRON_H, OLMO_HYBRID, YARN

STATE_CASES = {
    "granitemoehybrid": ("GraniteMoeHybridConfig", GRANITE_HYBRID),
    "granitemoehybrid-dense": (
        "GraniteMoeHybridConfig",
        dict(
            GRANITE_HYBRID,
            num_local_experts=0,
            num_experts_per_tok=0,
            position_embedding_type="rope",
            mamba_n_groups=1,
            mamba_conv_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    "bamba": ("BambaConfig", BAMBA),
    "bamba-biases": (
        "BambaConfig",
        dict(
            BAMBA,
            attn_layer_indices=[0],
            attention_bias=True,
            mlp_bias=True,
            mamba_n_groups=1,
            mamba_conv_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    "falcon_h1": ("FalconH1Config", FALCON_H1),
    "falcon_h1-normed": (
        "FalconH1Config",
        dict(
            FALCON_H1,
            mamba_rms_norm=True,
            mamba_norm_before_gate=False,
            ssm_multipliers=None,
            mlp_multipliers=None,
            tie_word_embeddings=True,
        ),
    ),
    "falcon_h1-unbiased": ("FalconH1Config", dict(FALCON_H1, mamba_conv_bias=False)),
    "olmo_hybrid": ("OlmoHybridConfig", OLMO_HYBRID),
    "olmo_hybrid-turning": (
        "OlmoHybridConfig",
        dict(
            OLMO_HYBRID,
            rope_parameters=YARN,
            linear_allow_neg_eigval=False,
            attention_bias=True,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
        ),
    ),
    "jamba": ("JambaConfig", JAMBA),
    "jamba-dense": (
        "JambaConfig",
        dict(
            JAMBA,
            num_experts=1,
            num_experts_per_tok=1,
            attn_layer_period=2,
            attn_layer_offset=0,
            mamba_dt_rank="auto",
            mamba_conv_bias=False,
            tie_word_embeddings=True,
        ),
    ),
    "nemotron_h": ("NemotronHConfig", NEMOTRON_H),
    "nemotron_h-groups": ("NemotronHConfig", dict(NEMOTRON_H, n_group=4, topk_group=2)),
    "nemotron_h-dense": (
        "NemotronHConfig",
        dict(NEMOTRON_H, hybrid_override_pattern="M-*MM-", n_groups=1),
    ),
    "nemotron_h-mixed": (
        "NemotronHConfig",
        dict(NEMOTRON_H, hybrid_override_pattern="ME*-E", use_conv_bias=False),
    ),
}
