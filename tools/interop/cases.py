"""The tiny models of architectures.py: for each the class of its config and what that says."""

from dense_cases import DENSE_CASES
from sizes import (
    AFMOE,
    AXK1,
    AXK2,
    COHERE_EXPERTS,
    DBRX,
    DEEPSEEK_V4,
    DENSE,
    DENSE_GRANITE,
    EXPERTS,
    FLINT,
    GEMMA4,
    GLM_LATENT,
    GRANITE,
    GRANITE_SWA,
    GROWN_YARN,
    HUNYUAN,
    HY4,
    INDEXED,
    KIMI,
    KOLIBRI,
    LAGUNA,
    LATENT,
    LATENT_YARN,
    LFM3,
    LINEAR,
    LING3,
    LLAMA3,
    LLAMA4,
    LLAMA_LIKE,
    LOCAL_EXPERTS,
    LONGCAT,
    MIMO,
    MINIMAX,
    MINIMAX_M3,
    MISTRAL4,
    PHIMOE,
    SIGMOID,
    SIZES,
    SPARSE,
    WINDOWED,
    YARN,
    YARN_OF_ONE,
    YARN_OF_V4,
)
from state_cases import STATE_CASES

CASES = {
    "llama": ("LlamaConfig", DENSE),
    "llama-biases": (
        "LlamaConfig",
        dict(DENSE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, head_dim=16),
    ),
    "llama-linear": (
        "LlamaConfig",
        dict(DENSE, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    ),
    "llama-llama3": ("LlamaConfig", dict(DENSE, rope_parameters=LLAMA3)),
    "llama-yarn": ("LlamaConfig", dict(DENSE, rope_parameters=YARN)),
    "llama-dynamic": (
        "LlamaConfig",
        dict(DENSE, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0)),
    ),
    "mistral": ("MistralConfig", dict(DENSE, head_dim=16, sliding_window=None)),
    "mistral-window": ("MistralConfig", dict(DENSE, head_dim=16, sliding_window=100)),
    "qwen2": ("Qwen2Config", dict(DENSE, tie_word_embeddings=True)),
    "qwen2-windows": (
        "Qwen2Config",
        dict(
            DENSE,
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=100,
            max_window_layers=1,
        ),
    ),
    "qwen3": ("Qwen3Config", dict(DENSE, head_dim=16)),
    "gpt2": (
        "GPT2Config",
        dict(
            vocab_size=256,
            n_embd=48,
            n_layer=2,
            n_head=4,
            n_positions=1024,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        ),
    ),
    "olmoe": (
        "OlmoeConfig",
        dict(
            SIZES, intermediate_size=24, num_experts=8, num_experts_per_tok=3, num_key_value_heads=4
        ),
    ),
    "olmoe-shared-kv": (
        "OlmoeConfig",
        dict(SIZES, intermediate_size=24, num_experts=8, num_experts_per_tok=3),
    ),
    "olmoe-clipped": (
        "OlmoeConfig",
        dict(
            SIZES,
            intermediate_size=24,
            num_experts=8,
            num_experts_per_tok=3,
            num_key_value_heads=4,
            clip_qkv=0.75,
        ),
    ),
    "mixtral": (
        "MixtralConfig",
        dict(
            SIZES,
            intermediate_size=24,
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
    ),
    "qwen2_moe": ("Qwen2MoeConfig", dict(EXPERTS, shared_expert_intermediate_size=40)),
    "qwen2_moe-sparse": (
        "Qwen2MoeConfig",
        dict(
            EXPERTS,
            num_hidden_layers=4,
            decoder_sparse_step=2,
            mlp_only_layers=[3],
            shared_expert_intermediate_size=40,
        ),
    ),
    "qwen3_moe": ("Qwen3MoeConfig", dict(EXPERTS, head_dim=16, norm_topk_prob=True)),
    "deepseek": (
        None,
        dict(
            DENSE,
            num_hidden_layers=3,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            n_shared_experts=2,
            first_k_dense_replace=1,
            moe_layer_freq=1,
            norm_topk_prob=False,
            scoring_func="softmax",
            aux_loss_alpha=0.001,
            seq_aux=True,
            hidden_act="silu",
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            rope_scaling=None,
            attention_bias=False,
            tie_word_embeddings=False,
            model_type="deepseek",
            architectures=["DeepseekForCausalLM"],
        ),
    ),
    "deepseek_v2": ("DeepseekV2Config", dict(LATENT, q_lora_rank=None)),
    "deepseek_v2-groups": (
        "DeepseekV2Config",
        dict(
            LATENT,
            q_lora_rank=24,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=2.0,
            rope_parameters=LATENT_YARN,
        ),
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        dict(LATENT, q_lora_rank=24, n_group=2, topk_group=1, rope_parameters=LATENT_YARN),
    ),
    "mistral4": ("Mistral4Config", dict(MISTRAL4, q_lora_rank=24)),
    "mistral4-plain": (
        "Mistral4Config",
        dict(
            MISTRAL4,
            q_lora_rank=None,
            first_k_dense_replace=0,
            n_shared_experts=1,
            norm_topk_prob=False,
        ),
    ),
    "axk1": ("AXK1Config", AXK1),
    "axk1-yarn": (
        "AXK1Config",
        dict(AXK1, n_group=1, first_k_dense_replace=0, rope_parameters=LATENT_YARN),
    ),
    "axk2": ("AXK2Config", AXK2),
    "axk2-yarn": (
        "AXK2Config",
        dict(AXK2, first_k_dense_replace=0, rope_parameters=LATENT_YARN),
    ),
    "longcat_flash": ("LongcatFlashConfig", LONGCAT),
    "longcat_flash-plain": (
        "LongcatFlashConfig",
        dict(LONGCAT, zero_expert_num=0, rope_parameters=LATENT_YARN),
    ),
    "deepseek_v32": (
        "DeepseekV32Config",
        dict(INDEXED, n_group=2, topk_group=1, rope_parameters=YARN_OF_ONE),
    ),
    "glm_moe_dsa": (
        "GlmMoeDsaConfig",
        dict(INDEXED, indexer_types=["full", "shared", "full"]),
    ),
    "deepseek_v4": ("DeepseekV4Config", DEEPSEEK_V4),
    "deepseek_v4-yarn": (
        "DeepseekV4Config",
        dict(DEEPSEEK_V4, num_attention_heads=6, o_groups=3, rope_parameters=YARN_OF_V4),
    ),
    "hy_v4": ("HYV4Config", HY4),
    # with 72 two keys at the border are too near for f32 to decide as f64 does
    "hy_v4-sparse": ("HYV4Config", dict(HY4, index_n_heads=16, index_topk=80)),
    "deepseek_v32-sparse": (
        "DeepseekV32Config",
        dict(SPARSE, n_group=2, topk_group=1, rope_parameters=LATENT_YARN),
    ),
    "glm_moe_dsa-sparse": (
        "GlmMoeDsaConfig",
        dict(SPARSE, indexer_types=["full", "shared", "full"]),
    ),
    "glm4_moe": ("Glm4MoeConfig", dict(SIGMOID, attention_bias=True, use_qk_norm=True)),
    "glm4_moe-groups": (
        "Glm4MoeConfig",
        dict(SIGMOID, n_group=2, topk_group=1, partial_rotary_factor=0.75),
    ),
    "solar_open": (
        "SolarOpenConfig",
        {
            key: value
            for key, value in dict(SIGMOID, num_hidden_layers=2, attention_bias=True).items()
            if key not in ("intermediate_size", "first_k_dense_replace")
        },
    ),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", dict(GLM_LATENT, q_lora_rank=24)),
    "afmoe": ("AfmoeConfig", AFMOE),
    "afmoe-plain": ("AfmoeConfig", dict(AFMOE, mup_enabled=False)),
    "exaone_moe": (
        "ExaoneMoeConfig",
        dict(WINDOWED, first_k_dense_replace=1, n_group=2, topk_group=1),
    ),
    "mimo_v2_flash": ("MiMoV2FlashConfig", MIMO),
    "mimo_v2_flash-parts": (
        "MiMoV2FlashConfig",
        dict(
            MIMO,
            num_key_value_heads=2,
            v_head_dim=32,
            attention_bias=True,
            attention_value_scale=None,
            n_group=2,
            topk_group=1,
            routed_scaling_factor=2.5,
            rope_parameters=dict(
                full_attention=dict(YARN, partial_rotary_factor=0.5),
                sliding_attention=dict(
                    rope_type="default", rope_theta=500.0, partial_rotary_factor=1.0
                ),
            ),
        ),
    ),
    "laguna": ("LagunaConfig", LAGUNA),
    "laguna-elements": (
        "LagunaConfig",
        dict(
            LAGUNA,
            num_attention_heads_per_layer=None,
            gating="per-element",
            attention_bias=True,
            rope_parameters=dict(
                full_attention=dict(YARN, partial_rotary_factor=0.5),
                sliding_attention=dict(
                    rope_type="default", rope_theta=500.0, partial_rotary_factor=1.0
                ),
            ),
        ),
    ),
    "laguna-whole": (
        "LagunaConfig",
        dict(
            LAGUNA,
            num_attention_heads_per_layer=None,
            layer_types=["full_attention"] * 4,
            gating="per-element",
            tie_word_embeddings=True,
        ),
    ),
    "flint": ("FlintConfig", FLINT),
    "flint-raw": (
        "FlintConfig",
        dict(FLINT, norm_topk_prob=False, attention_bias=True, decoder_sparse_step=2),
    ),
    "hy_v3": (
        "HYV3Config",
        dict(
            LLAMA_LIKE,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            num_shared_experts=2,
            router_scaling_factor=2.5,
        ),
    ),
    "dots1": ("Dots1Config", dict(SIGMOID, num_key_value_heads=4)),
    "dots1-windows": ("Dots1Config", dict(SIGMOID, sliding_window=100, max_window_layers=2)),
    "minimax": ("MiniMaxConfig", MINIMAX),
    "minimax-factors": (
        "MiniMaxConfig",
        dict(
            MINIMAX,
            full_attn_alpha_factor=3.5,
            full_attn_beta_factor=0.75,
            linear_attn_beta_factor=1.25,
            mlp_alpha_factor=1.5,
            mlp_beta_factor=0.5,
        ),
    ),
    "minimax-windows": (
        "MiniMaxConfig",
        dict(
            MINIMAX,
            num_hidden_layers=3,
            layer_types=["full_attention", "linear_attention", "full_attention"],
            sliding_window=100,
            tie_word_embeddings=True,
        ),
    ),
    "minimax_m2": ("MiniMaxM2Config", dict(LOCAL_EXPERTS, head_dim=16, rotary_dim=8)),
    "minimax_m3_vl_text": ("MiniMaxM3VLTextConfig", MINIMAX_M3),
    "minimax_m3_vl_text-sparse": (
        "MiniMaxM3VLTextConfig",
        dict(
            MINIMAX_M3,
            shared_intermediate_size=40,
            layer_types=["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
            index_topk_blocks=3,
        ),
    ),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        dict(
            DENSE,
            num_hidden_layers=3,
            moe_num_experts=8,
            moe_k=3,
            moe_intermediate_size=24,
            tie_word_embeddings=False,
        ),
    ),
    "olmo2": ("Olmo2Config", DENSE),
    "olmo3": ("Olmo3Config", dict(DENSE, num_hidden_layers=4, sliding_window=100)),
    "olmo3-yarn": (
        "Olmo3Config",
        dict(
            DENSE,
            num_hidden_layers=4,
            sliding_window=100,
            rope_parameters=dict(
                full_attention=YARN,
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        dict(
            DENSE,
            num_hidden_layers=7,
            head_dim=16,
            sliding_window=100,
            query_pre_attn_scalar=16,
        ),
    ),
    "gemma3-linear": (
        "Gemma3TextConfig",
        dict(
            DENSE,
            num_hidden_layers=6,
            head_dim=16,
            sliding_window=100,
            query_pre_attn_scalar=24,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
    ),
    "gemma4_text": ("Gemma4TextConfig", GEMMA4),
    "gemma4_text-dense": (
        "Gemma4TextConfig",
        dict(GEMMA4, enable_moe_block=False, attention_k_eq_v=False, final_logit_softcapping=None),
    ),
    "qwen3_next": ("Qwen3NextConfig", LINEAR),
    "qwen3_next-sparse": (
        "Qwen3NextConfig",
        dict(LINEAR, mlp_only_layers=[1], linear_key_head_dim=12, linear_num_key_heads=4),
    ),
    "kimi_linear": ("KimiLinearConfig", KIMI),
    "kimi_linear-heads": (
        "KimiLinearConfig",
        dict(KIMI, linear_num_heads=3, linear_head_dim=16),
    ),
    "bailing_hybrid": ("BailingHybridConfig", LING3),
    "bailing_hybrid-free": (
        "BailingHybridConfig",
        dict(
            LING3,
            kda_safe_gate=False,
            layer_types=["linear_attention"] + ["full_attention"] * 2 + ["linear_attention"],
            linear_num_heads=3,
            n_group=1,
            rope_theta=10000.0,
            rope_parameters=LATENT_YARN,
        ),
    ),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeTextConfig",
        {key: size for key, size in LINEAR.items() if key != "intermediate_size"},
    ),
    "qwen3_5_text": (
        "Qwen3_5TextConfig",
        {
            key: size
            for key, size in LINEAR.items()
            if key in DENSE or key == "head_dim" or key.startswith("linear_")
        },
    ),
    "mellum": (
        "MellumConfig",
        dict(
            EXPERTS,
            num_hidden_layers=4,
            head_dim=16,
            sliding_window=100,
            layer_types=["sliding_attention"] * 3 + ["full_attention"],
            rope_parameters=dict(
                full_attention=YARN,
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
    ),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        dict(
            EXPERTS,
            num_hidden_layers=4,
            num_dense_layers=1,
            layer_types=["conv", "full_attention", "conv", "full_attention"],
        ),
    ),
    "hunyuan_v1_moe": ("HunYuanMoEV1Config", HUNYUAN),
    "hunyuan_v1_moe-alpha": (
        "HunYuanMoEV1Config",
        dict(
            HUNYUAN,
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="dynamic", alpha=1000.0, rope_theta=10000.0, factor=1.0
            ),
        ),
    ),
    "flex_olmo": ("FlexOlmoConfig", dict(DENSE, num_experts=8, num_experts_per_tok=3, pad_token_id=None)),
    "smollm3": ("SmolLM3Config", dict(DENSE, num_hidden_layers=4, pad_token_id=None)),
    "gpt_oss": (
        "GptOssConfig",
        dict(
            LOCAL_EXPERTS,
            head_dim=16,
            sliding_window=100,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=10000.0,
                factor=4.0,
                original_max_position_embeddings=64,
                truncate=False,
            ),
        ),
    ),
    "phimoe": ("PhimoeConfig", PHIMOE),
    "phimoe-longrope": (
        "PhimoeConfig",
        dict(
            PHIMOE,
            hidden_size=64,
            attention_bias=False,
            lm_head_bias=False,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                short_factor=[1.0 + 0.05 * i for i in range(8)],
                long_factor=[2.0 + i for i in range(8)],
                short_mscale=1.2,
                long_mscale=1.25,
                original_max_position_embeddings=600,
            ),
        ),
    ),
    "aria_text": (
        "AriaTextConfig",
        dict(SIZES, intermediate_size=24, moe_num_experts=8, moe_topk=3, moe_num_shared_experts=2),
    ),
    "phi3": ("Phi3Config", dict(DENSE, pad_token_id=None)),
    "phi3-part": (
        "Phi3Config",
        dict(DENSE, pad_token_id=None, partial_rotary_factor=0.5, tie_word_embeddings=True),
    ),
    "phi3-longrope": (
        "Phi3Config",
        dict(
            DENSE,
            hidden_size=64,
            pad_token_id=None,
            original_max_position_embeddings=600,
            rope_parameters=dict(
                rope_type="longrope",
                rope_theta=10000.0,
                short_factor=[1.0 + 0.05 * i for i in range(8)],
                long_factor=[2.0 + i for i in range(8)],
            ),
        ),
    ),
    "gemma": ("GemmaConfig", dict(DENSE, head_dim=16)),
    "gemma2": (
        "Gemma2Config",
        dict(
            DENSE,
            num_hidden_layers=3,
            head_dim=16,
            sliding_window=100,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=2.0,
        ),
    ),
    "gemma2-free": (
        "Gemma2Config",
        dict(
            DENSE,
            head_dim=16,
            sliding_window=100,
            query_pre_attn_scalar=24,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
        ),
    ),
    "granite": ("GraniteConfig", DENSE_GRANITE),
    "hyperclovax": ("HyperCLOVAXConfig", dict(DENSE_GRANITE, logits_scaling=0.125)),
    "hyperclovax-pre": (
        "HyperCLOVAXConfig",
        dict(DENSE_GRANITE, logits_scaling=0.3, use_post_norm=False),
    ),
    "granite_swa": (
        "GraniteSWAConfig",
        dict(DENSE_GRANITE, num_hidden_layers=4, sliding_window=100),
    ),
    "glm4": ("Glm4Config", dict(LLAMA_LIKE, pad_token_id=None)),
    "glm": ("GlmConfig", dict(LLAMA_LIKE, pad_token_id=None)),
    "glm-bias": ("GlmConfig", dict(DENSE, head_dim=12, attention_bias=True, pad_token_id=None)),
    "seed_oss": ("SeedOssConfig", dict(LLAMA_LIKE, residual_dropout=0.0, attention_dropout=0.0)),
    "exaone4": ("Exaone4Config", dict(DENSE, num_hidden_layers=4, sliding_window=100)),
    "exaone4-whole": (
        "Exaone4Config",
        dict(DENSE, sliding_window=None, layer_types=["full_attention"] * 2),
    ),
    "ernie4_5": ("Ernie4_5Config", LLAMA_LIKE),
    "lfm2": (
        "Lfm2Config",
        dict(
            DENSE,
            num_hidden_layers=4,
            intermediate_size=100,
            block_multiple_of=32,
            full_attn_idxs=[1, 3],
        ),
    ),
    "lfm3": ("Lfm3Config", LFM3),
    "lfm3-plain": (
        "Lfm3Config",
        dict(
            LFM3,
            use_sandwich_norm=False,
            use_attention_gate=False,
            attention_bias=True,
            conv_L_cache=3,
            tie_word_embeddings=False,
            rope_parameters=dict(
                full_attention=dict(rope_type="default", rope_theta=5000.0),
                sliding_attention=dict(rope_type="default", rope_theta=5000.0),
            ),
        ),
    ),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", dict(DENSE, head_dim=16)),
    **DENSE_CASES,
    "ministral3": (
        "Ministral3Config",
        dict(DENSE, head_dim=16, rope_parameters=GROWN_YARN),
    ),
    "ministral3-unscaled": (
        "Ministral3Config",
        dict(
            DENSE,
            head_dim=16,
            rope_parameters=dict(
                rope_type="default",
                rope_theta=10000.0,
                original_max_position_embeddings=32,
                llama_4_scaling_beta=0.3,
            ),
        ),
    ),
    "helium": ("HeliumConfig", dict(DENSE, head_dim=12, attention_bias=True)),
    "cohere2_moe": ("Cohere2MoeConfig", dict(COHERE_EXPERTS, first_k_dense_replace=2)),
    "cohere2_moe-sigmoid": (
        "Cohere2MoeConfig",
        dict(
            COHERE_EXPERTS,
            first_k_dense_replace=2,
            prefix_dense_sliding_window_pattern=2,
            prefix_dense_intermediate_size=None,
            expert_selection_fn="sigmoid",
            shared_expert_combination_strategy="sum",
            rms_norm_eps=1e-6,
            attention_bias=True,
        ),
    ),
    "cohere2_moe-raw": (
        "Cohere2MoeConfig",
        dict(
            COHERE_EXPERTS,
            num_shared_experts=0,
            expert_selection_fn="sigmoid",
            norm_topk_prob=False,
        ),
    ),
    "kolibri1": ("Kolibri1Config", KOLIBRI),
    "kolibri1-normed": (
        "Kolibri1Config",
        dict(
            KOLIBRI,
            num_hidden_layers=2,
            layer_types=["full_attention", "sliding_attention"],
            norm_topk_prob=True,
        ),
    ),
    "dbrx": ("DbrxConfig", DBRX),
    "dbrx-plain": (
        "DbrxConfig",
        dict(
            DBRX,
            attn_config=dict(kv_n_heads=4, clip_qkv=50.0, rope_theta=10000.0),
            ffn_config=dict(DBRX["ffn_config"], moe_normalize_expert_weights=None),
        ),
    ),
    "llama4_text": ("Llama4TextConfig", dict(LLAMA4, rope_parameters=LLAMA3)),
    # With the numbers that stand in llama.cpp's code.
    "llama4_text-scout": (
        "Llama4TextConfig",
        dict(
            LLAMA4,
            attention_chunk_size=8192,
            floor_scale=8192,
            attn_scale=0.1,
            no_rope_layer_interval=4,
            interleave_moe_layer_step=2,
            rope_parameters=dict(LLAMA3, high_freq_factor=1.0),
        ),
    ),
    "llama4_text-sparse": (
        "Llama4TextConfig",
        dict(
            LLAMA4,
            num_experts_per_tok=2,
            interleave_moe_layer_step=2,
            use_qk_norm=False,
            attn_temperature_tuning=False,
            attention_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "arcee": ("ArceeConfig", DENSE),
    "nemotron": ("NemotronConfig", DENSE),
    "nemotron-biases": (
        "NemotronConfig",
        dict(DENSE, head_dim=16, attention_bias=True, mlp_bias=True),
    ),
    "nanochat": ("NanoChatConfig", DENSE),
    "nanochat-biases": (
        "NanoChatConfig",
        dict(DENSE, attention_bias=True, final_logit_softcapping=None),
    ),
    "internlm3": ("InternLM3Config", dict(DENSE, head_dim=16)),
    "internlm3-biases": (
        "InternLM3Config",
        dict(DENSE, head_dim=16, attention_bias=True, mlp_bias=True),
    ),
    "apertus": ("ApertusConfig", dict(DENSE, rope_parameters=LLAMA3)),
    "apertus-bias": (
        "ApertusConfig",
        dict(DENSE, head_dim=16, attention_bias=True, tie_word_embeddings=True),
    ),
    "youtu": (
        "YoutuConfig",
        {
            key: size
            for key, size in dict(LATENT, q_lora_rank=24).items()
            if key in DENSE or key.startswith(("qk_", "kv_", "q_", "v_"))
        },
    ),
    "granitemoe": ("GraniteMoeConfig", GRANITE),
    "granitemoeshared": (
        "GraniteMoeSharedConfig",
        dict(GRANITE, shared_intermediate_size=40, tie_word_embeddings=True),
    ),
    "granitemoe_swa": ("GraniteMoeSWAConfig", dict(GRANITE_SWA, shared_intermediate_size=40)),
    "granitemoe_swa-still": (
        "GraniteMoeSWAConfig",
        dict(GRANITE_SWA, layer_rope_theta=[0.0, 5000.0, 5000.0, 5000.0]),
    ),
    **STATE_CASES,
}
