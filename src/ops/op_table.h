// Every op that runs where its Run says, as a table: ops/dispatch.cpp makes of each row the
// function of ops.h or routing.h of that name, ops/cpu/functions.h and ops/cuda/functions.h declare
// what it calls.
//   MOE_OP(where, result, name, (parameters), (arguments))
// where: `device` has a kernel in ops/cuda; `host` is worked out on the CPU, its tensors brought
// there and back (ops/cuda/placed.h). Included wherever MOE_OP is defined.
MOE_OP(device, void, matmul_forward,
       (Run & run, Tensor y, GatheredRows x, Param& w, std::span<const int64_t> offsets),
       (run, y, x, w, offsets))
MOE_OP(device, void, matmul_forward,
       (Run & run, List<Operand> operands, GatheredRows x, std::span<const int64_t> offsets),
       (run, operands, x, offsets))
MOE_OP(device, void, matmul_forward_acc,
       (Run & run, Tensor y, GatheredRows x, Param& w, std::span<const int64_t> offsets),
       (run, y, x, w, offsets))
MOE_OP(device, void, matmul_forward_f32,
       (Run & run, Tensor y, GatheredRows x, Param& w, std::span<const int64_t> offsets),
       (run, y, x, w, offsets))
MOE_OP(device, void, matmul_dx,
       (Run & run, Tensor dx, GatheredRows dy, Param& w, std::span<const int64_t> offsets),
       (run, dx, dy, w, offsets))
MOE_OP(device, void, matmul_dx,
       (Run & run, Tensor dx, List<Operand> operands, std::span<const int64_t> offsets),
       (run, dx, operands, offsets))
MOE_OP(device, void, matmul_dx_acc,
       (Run & run, Tensor dx, GatheredRows dy, Param& w, std::span<const int64_t> offsets),
       (run, dx, dy, w, offsets))
MOE_OP(device, void, matmul_dw,
       (Run & run, Param& w, GatheredRows dy, GatheredRows x, std::span<const int64_t> offsets),
       (run, w, dy, x, offsets))
MOE_OP(device, void, matmul_dw,
       (Run & run, List<Operand> operands, GatheredRows x, std::span<const int64_t> offsets),
       (run, operands, x, offsets))
MOE_OP(device, void, bias_forward_acc,
       (Run & run, Tensor y, const Param& bias, Tensor weight, std::span<const int64_t> offsets),
       (run, y, bias, weight, offsets))
MOE_OP(device, void, bias_backward,
       (Run & run, Tensor dweight_acc, Param& bias, GatheredRows dy, Tensor weight,
        std::span<const int64_t> offsets),
       (run, dweight_acc, bias, dy, weight, offsets))
MOE_OP(device, void, rms_norm_forward,
       (Run & run, Tensor y, Tensor rstd, Tensor x, const Param& weight, float eps, float offset),
       (run, y, rstd, x, weight, eps, offset))
MOE_OP(device, void, rms_norm_backward,
       (Run & run, Tensor dx, Param& weight, Tensor dy, Tensor x, Tensor rstd, float offset),
       (run, dx, weight, dy, x, rstd, offset))
MOE_OP(device, void, layer_norm_forward,
       (Run & run, Tensor y, Tensor mean, Tensor rstd, Tensor x, const Param& weight,
        const Param& bias, float eps, float offset),
       (run, y, mean, rstd, x, weight, bias, eps, offset))
MOE_OP(device, void, layer_norm_backward,
       (Run & run, Tensor dx, Param& weight, Param& bias, Tensor dy, Tensor x, Tensor mean,
        Tensor rstd, float offset),
       (run, dx, weight, bias, dy, x, mean, rstd, offset))
MOE_OP(device, void, cast, (Run & run, Tensor y, Tensor x), (run, y, x))
MOE_OP(device, void, add, (Run & run, Tensor y, Tensor a, Tensor b), (run, y, a, b))
MOE_OP(device, void, multiply, (Run & run, Tensor y, Tensor a, Tensor b), (run, y, a, b))
MOE_OP(device, void, scale, (Run & run, Tensor y, Tensor x, float factor), (run, y, x, factor))
MOE_OP(device, void, add_scaled, (Run & run, Tensor y, Tensor x, Tensor z, float a, float b),
       (run, y, x, z, a, b))
MOE_OP(device, void, soft_cap_forward, (Run & run, Tensor y, Tensor x, float cap), (run, y, x, cap))
MOE_OP(device, void, soft_cap_backward, (Run & run, Tensor dx, Tensor dy, Tensor y, float cap),
       (run, dx, dy, y, cap))
MOE_OP(host, void, clip_forward, (Run & run, Tensor y, Tensor x, float limit), (run, y, x, limit))
MOE_OP(host, void, clip_backward, (Run & run, Tensor dx, Tensor dy, Tensor x, float limit),
       (run, dx, dy, x, limit))
MOE_OP(device, void, zero, (Run & run, Tensor y), (run, y))
MOE_OP(device, void, dropout, (Run & run, Tensor y, Tensor x, float p, RngKey key),
       (run, y, x, p, key))
MOE_OP(device, CosSinTable, cos_sin_table,
       (Run & run, Arena& memory, std::span<const int32_t> positions, const RopeFrequencies& table),
       (run, memory, positions, table))
MOE_OP(device, void, rope_acc,
       (Run & run, List<Tensor> all, int64_t head_width, const CosSinTable& cos_sin, bool inverse),
       (run, all, head_width, cos_sin, inverse))
MOE_OP(device, void, embedding_forward,
       (Run & run, Tensor y, const Param& table, std::span<const int32_t> ids),
       (run, y, table, ids))
MOE_OP(device, void, embedding_forward_acc,
       (Run & run, Tensor y, const Param& table, std::span<const int32_t> ids),
       (run, y, table, ids))
MOE_OP(device, void, embedding_backward,
       (Run & run, Param& table, Tensor dy, std::span<const int32_t> ids), (run, table, dy, ids))
MOE_OP(device, void, ffn_act_forward,
       (Run & run, Tensor hidden, Tensor gate, Tensor up, Tensor weight, Act act),
       (run, hidden, gate, up, weight, act))
MOE_OP(device, void, ffn_act_backward,
       (Run & run, Tensor dgate, Tensor dup, Tensor hidden, Tensor dweight, Tensor dhidden,
        Tensor gate, Tensor up, Tensor weight, Act act),
       (run, dgate, dup, hidden, dweight, dhidden, gate, up, weight, act))
MOE_OP(host, void, xielu_forward,
       (Run & run, Tensor hidden, Tensor up, const Param& alpha_p, const Param& alpha_n,
        const Param& beta, const Param& eps),
       (run, hidden, up, alpha_p, alpha_n, beta, eps))
MOE_OP(host, void, xielu_backward,
       (Run & run, Tensor dup, Tensor hidden, Param& alpha_p, Param& alpha_n, Tensor dhidden,
        Tensor up, const Param& beta, const Param& eps),
       (run, dup, hidden, alpha_p, alpha_n, dhidden, up, beta, eps))
MOE_OP(device, void, gather_rows, (Run & run, Tensor y, Tensor x, std::span<const int32_t> token),
       (run, y, x, token))
MOE_OP(device, void, sum_rows,
       (Run & run, Tensor y, Tensor x, std::span<const int32_t> bounds,
        std::span<const int32_t> row),
       (run, y, x, bounds, row))
MOE_OP(device, void, sum_rows_acc,
       (Run & run, Tensor y, Tensor x, std::span<const int32_t> bounds,
        std::span<const int32_t> row),
       (run, y, x, bounds, row))
MOE_OP(host, void, weigh_rows_forward, (Run & run, Tensor y, GatheredRows x, Tensor weight),
       (run, y, x, weight))
MOE_OP(host, void, weigh_rows_backward,
       (Run & run, Tensor dx, Tensor dweight, Tensor dy, GatheredRows x, Tensor weight),
       (run, dx, dweight, dy, x, weight))
MOE_OP(device, void, put_columns, (Run & run, Tensor y, Tensor x, std::span<const int64_t> ids),
       (run, y, x, ids))
MOE_OP(device, void, take_columns, (Run & run, Tensor y, Tensor x, std::span<const int64_t> ids),
       (run, y, x, ids))
MOE_OP(host, void, keep_columns, (Run & run, Tensor h, Tensor kept), (run, h, kept))
MOE_OP(host, void, kept_neurons_forward,
       (Run & run, Tensor y, Tensor x, const Param& gate, const Param& up, const Param& down,
        Tensor kept, Act act),
       (run, y, x, gate, up, down, kept, act))
MOE_OP(device, void, join_heads, (Run & run, Tensor y, Tensor shared, Tensor own, int64_t heads),
       (run, y, shared, own, heads))
MOE_OP(device, void, split_heads,
       (Run & run, Tensor dshared, Tensor down, Tensor dy, int64_t heads),
       (run, dshared, down, dy, heads))
MOE_OP(device, void, store_keys, (Run & run, Tensor cache, Tensor x, std::span<const int64_t> row),
       (run, cache, x, row))
MOE_OP(device, void, attention_forward,
       (Run & run, Tensor o, Tensor lse, Tensor q, const KvView& kv,
        std::span<const int32_t> positions, int64_t heads, int64_t kv_heads, float scale,
        int64_t window, float cap),
       (run, o, lse, q, kv, positions, heads, kv_heads, scale, window, cap))
MOE_OP(device, void, attention_backward,
       (Run & run, Tensor dq, Tensor dk, Tensor dv, Tensor do_, Tensor q, const KvView& kv,
        Tensor o, Tensor lse, std::span<const int32_t> positions, int64_t heads, int64_t kv_heads,
        float scale, int64_t window, float cap),
       (run, dq, dk, dv, do_, q, kv, o, lse, positions, heads, kv_heads, scale, window, cap))
MOE_OP(host, void, choose_keys,
       (Run & run, Tensor kept, Tensor q, Tensor weights, const KvView& keys,
        std::span<const int32_t> positions),
       (run, kept, q, weights, keys, positions))
MOE_OP(host, void, choose_blocks,
       (Run & run, Tensor kept, Tensor q, const KvView& keys, std::span<const int32_t> positions,
        int64_t block, int64_t local),
       (run, kept, q, keys, positions, block, local))
MOE_OP(host, void, attend_entries_acc,
       (Run & run, Tensor o, Tensor lse, Tensor q, Tensor entries, Tensor kept, int64_t heads,
        float scale),
       (run, o, lse, q, entries, kept, heads, scale))
MOE_OP(host, void, attend_entries_backward_acc,
       (Run & run, Tensor dq, Tensor dentries, Tensor do_, Tensor q, Tensor entries, Tensor o,
        Tensor lse, Tensor kept, int64_t heads, float scale),
       (run, dq, dentries, do_, q, entries, o, lse, kept, heads, scale))
MOE_OP(host, void, pool_tokens_forward,
       (Run & run, Tensor y, Tensor x, Tensor z, const Param& bias, int64_t parts,
        std::span<const int64_t> bounds, std::span<const int32_t> positions,
        std::span<float* const> state),
       (run, y, x, z, bias, parts, bounds, positions, state))
MOE_OP(host, void, pool_tokens_backward,
       (Run & run, Tensor dx, Tensor dz, Param& bias, Tensor dy, Tensor x, Tensor z, int64_t parts,
        std::span<const int64_t> bounds, std::span<const int32_t> positions),
       (run, dx, dz, bias, dy, x, z, parts, bounds, positions))
MOE_OP(device, void, attention_sinks, (Run & run, Tensor o, Tensor lse, const Param& sinks),
       (run, o, lse, sinks))
MOE_OP(device, void, attention_sinks_backward,
       (Run & run, Param& sinks, Tensor do_, Tensor o, Tensor lse), (run, sinks, do_, o, lse))
MOE_OP(host, void, head_gates_forward,
       (Run & run, Tensor y, Tensor o, Tensor gate, GateCurve curve), (run, y, o, gate, curve))
MOE_OP(host, void, head_gates_backward,
       (Run & run, Tensor do_, Tensor dgate, Tensor y, Tensor dy, Tensor o, Tensor gate,
        GateCurve curve),
       (run, do_, dgate, y, dy, o, gate, curve))
MOE_OP(host, void, short_conv_forward,
       (Run & run, Tensor y, Tensor x, const Param& weight, const Param& bias,
        std::span<const int64_t> bounds, std::span<float* const> state, ConvAct act),
       (run, y, x, weight, bias, bounds, state, act))
MOE_OP(host, void, short_conv_backward,
       (Run & run, Tensor dx, Param& weight, Param& bias, Tensor dy, Tensor x,
        std::span<const int64_t> bounds, ConvAct act),
       (run, dx, weight, bias, dy, x, bounds, act))
MOE_OP(host, void, delta_gates_forward,
       (Run & run, Tensor log_decay, Tensor strength, Tensor a, Tensor b, const Param& a_log,
        const Param& dt_bias, float most, float floor),
       (run, log_decay, strength, a, b, a_log, dt_bias, most, floor))
MOE_OP(host, void, delta_gates_backward,
       (Run & run, Tensor da, Tensor db, Param& a_log, Param& dt_bias, Tensor dlog_decay,
        Tensor dstrength, Tensor a, Tensor b, float most, float floor),
       (run, da, db, a_log, dt_bias, dlog_decay, dstrength, a, b, most, floor))
MOE_OP(host, void, delta_rule_forward,
       (Run & run, Tensor o, Tensor chunks, Tensor qkv, Tensor log_decay, Tensor strength,
        const DeltaHeads& heads, std::span<const int64_t> bounds, std::span<float* const> state),
       (run, o, chunks, qkv, log_decay, strength, heads, bounds, state))
MOE_OP(host, void, delta_rule_backward,
       (Run & run, Tensor dqkv, Tensor dlog_decay, Tensor dstrength, Tensor do_, Tensor chunks,
        Tensor qkv, Tensor log_decay, Tensor strength, const DeltaHeads& heads,
        std::span<const int64_t> bounds),
       (run, dqkv, dlog_decay, dstrength, do_, chunks, qkv, log_decay, strength, heads, bounds))
MOE_OP(host, void, state_space_forward,
       (Run & run, Tensor y, Tensor chunks, Tensor xbc, Tensor dt, const Param& a_log,
        const Param& dt_bias, const Param& skip, const StateHeads& heads,
        std::span<const int64_t> bounds, std::span<float* const> state),
       (run, y, chunks, xbc, dt, a_log, dt_bias, skip, heads, bounds, state))
MOE_OP(host, void, state_space_backward,
       (Run & run, Tensor dxbc, Tensor ddt, Param& a_log, Param& dt_bias, Param& skip, Tensor dy,
        Tensor chunks, Tensor xbc, Tensor dt, const StateHeads& heads,
        std::span<const int64_t> bounds),
       (run, dxbc, ddt, a_log, dt_bias, skip, dy, chunks, xbc, dt, heads, bounds))
MOE_OP(host, void, selective_scan_forward,
       (Run & run, Tensor y, Tensor chunks, Tensor x, Tensor dt, Tensor bc, const Param& a_log,
        const Param& dt_bias, const Param& skip, std::span<const int64_t> bounds,
        std::span<float* const> state),
       (run, y, chunks, x, dt, bc, a_log, dt_bias, skip, bounds, state))
MOE_OP(host, void, selective_scan_backward,
       (Run & run, Tensor dx, Tensor ddt, Tensor dbc, Param& a_log, Param& dt_bias, Param& skip,
        Tensor dy, Tensor chunks, Tensor x, Tensor dt, Tensor bc, std::span<const int64_t> bounds),
       (run, dx, ddt, dbc, a_log, dt_bias, skip, dy, chunks, x, dt, bc, bounds))
MOE_OP(host, void, hyper_weights_forward,
       (Run & run, Tensor w, Tensor z, const Param& base, const Param& scale,
        const HyperShape& shape),
       (run, w, z, base, scale, shape))
MOE_OP(host, void, hyper_weights_backward,
       (Run & run, Tensor dz, Param& base, Param& scale, Tensor dw, Tensor z,
        const HyperShape& shape),
       (run, dz, base, scale, dw, z, shape))
MOE_OP(host, void, collapse_streams_forward, (Run & run, Tensor x, Tensor h, Tensor w),
       (run, x, h, w))
MOE_OP(host, void, collapse_streams_backward_acc,
       (Run & run, Tensor dh, Tensor dw, Tensor dx, Tensor h, Tensor w), (run, dh, dw, dx, h, w))
MOE_OP(host, void, spread_streams_forward,
       (Run & run, Tensor out, Tensor h, Tensor y, Tensor w, bool mixes),
       (run, out, h, y, w, mixes))
MOE_OP(host, void, spread_streams_backward,
       (Run & run, Tensor dh, Tensor dy, Tensor dw, Tensor dout, Tensor h, Tensor y, Tensor w,
        bool mixes),
       (run, dh, dy, dw, dout, h, y, w, mixes))
MOE_OP(device, void, softmax_forward, (Run & run, Tensor s, Tensor lse, Tensor z), (run, s, lse, z))
MOE_OP(device, void, softmax_backward, (Run & run, Tensor dz, Tensor ds, Tensor dlse, Tensor s),
       (run, dz, ds, dlse, s))
MOE_OP(device, void, logsumexp_backward_acc,
       (Run & run, Tensor dz, Tensor dlse, Tensor z, Tensor lse), (run, dz, dlse, z, lse))
MOE_OP(device, void, cross_entropy_forward,
       (Run & run, Tensor nll, Tensor lse, Tensor logits, std::span<const int32_t> targets),
       (run, nll, lse, logits, targets))
MOE_OP(device, void, cross_entropy_backward,
       (Run & run, Tensor dlogits, Tensor logits, Tensor lse, std::span<const int32_t> targets,
        float scale, std::span<const float> weights),
       (run, dlogits, logits, lse, targets, scale, weights))
MOE_OP(device, void, divergence_forward,
       (Run & run, Tensor kl, Tensor teacher_lse, Tensor teacher, Tensor logits, Tensor lse,
        std::span<const int32_t> targets),
       (run, kl, teacher_lse, teacher, logits, lse, targets))
MOE_OP(device, void, divergence_backward,
       (Run & run, Tensor dlogits, Tensor logits, Tensor lse, Tensor teacher, Tensor teacher_lse,
        std::span<const int32_t> targets, float scale, float share),
       (run, dlogits, logits, lse, teacher, teacher_lse, targets, scale, share))
MOE_OP(device, void, sums_of_squares, (Run & run, std::span<double> sums, List<Tensor> all),
       (run, sums, all))
MOE_OP(device, double, sum_squares, (Run & run, Tensor x), (run, x))
MOE_OP(device, void, mean_square, (Run & run, Tensor mean, Tensor x), (run, mean, x))
MOE_OP(device, void, adamw_step, (Run & run, Param& param, Tensor m, Tensor v, const AdamW& how),
       (run, param, m, v, how))
MOE_OP(device, void, adamw_step,
       (Run & run, Tensor value, Tensor m, Tensor v, Tensor grad, const AdamW& how),
       (run, value, m, v, grad, how))
MOE_OP(device, void, newton_schulz,
       (Run & run, List<Tensor> all, std::span<const NewtonSchulz> steps), (run, all, steps))
MOE_OP(device, void, settle_grad, (Run & run, Param& param), (run, param))
MOE_OP(device, double, measure_peak_flops, (Run & run, DType dtype, double seconds),
       (run, dtype, seconds))
MOE_OP(device, double, measure_read_bandwidth, (Run & run, double seconds), (run, seconds))
MOE_OP(device, void, sqrt_softplus_forward, (Run & run, Tensor s, Tensor z), (run, s, z))
MOE_OP(device, void, sqrt_softplus_backward, (Run & run, Tensor dz, Tensor ds, Tensor s, Tensor z),
       (run, dz, ds, s, z))
MOE_OP(device, void, top_experts,
       (Run & run, Tensor choice, Tensor s, Tensor bias, const ExpertGroups* groups),
       (run, choice, s, bias, groups))
MOE_OP(host, void, top_set, (Run & run, Tensor choice, Tensor s), (run, choice, s))
MOE_OP(host, void, top_tokens,
       (Run & run, Tensor selected, Tensor cutoff, Tensor choice, Tensor s,
        std::span<const int64_t> scopes, std::span<const int64_t> take),
       (run, selected, cutoff, choice, s, scopes, take))
MOE_OP(device, void, reach_threshold,
       (Run & run, Tensor selected, Tensor choice, Tensor s, Tensor threshold),
       (run, selected, choice, s, threshold))
MOE_OP(device, void, select_all, (Run & run, Tensor selected), (run, selected))
MOE_OP(device, void, count_on_from_ids,
       (Run & run, Tensor choice, std::span<const int32_t> ids, int64_t experts),
       (run, choice, ids, experts))
MOE_OP(host, void, shuffle_by_ids,
       (Run & run, Tensor choice, std::span<const int32_t> ids, int64_t experts, RngKey seed),
       (run, choice, ids, experts, seed))
MOE_OP(host, void, draw_near_best, (Run & run, Tensor choice, Tensor s, float eps, RngKey key),
       (run, choice, s, eps, key))
MOE_OP(host, void, weigh_near_best_forward,
       (Run & run, Tensor w, Tensor s, Tensor choice, Tensor selected, float eps, RngKey key),
       (run, w, s, choice, selected, eps, key))
MOE_OP(host, void, weigh_near_best_backward_acc,
       (Run & run, Tensor ds, Tensor dw, Tensor s, Tensor choice, Tensor selected, float eps),
       (run, ds, dw, s, choice, selected, eps))
MOE_OP(device, void, weigh_scores_forward,
       (Run & run, Tensor w, Tensor s, Tensor choice, Tensor selected, bool renormalise,
        float scale),
       (run, w, s, choice, selected, renormalise, scale))
MOE_OP(device, void, weigh_scores_backward_acc,
       (Run & run, Tensor ds, Tensor dw, Tensor w, Tensor s, Tensor choice, Tensor selected,
        bool renormalise, float scale),
       (run, ds, dw, w, s, choice, selected, renormalise, scale))
MOE_OP(device, void, weigh_softmax_forward,
       (Run & run, Tensor w, Tensor s, Tensor choice, Tensor selected),
       (run, w, s, choice, selected))
MOE_OP(device, void, weigh_softmax_backward_acc,
       (Run & run, Tensor ds, Tensor dw, Tensor w, Tensor choice, Tensor selected),
       (run, ds, dw, w, choice, selected))
MOE_OP(host, void, weigh_over_tokens_forward,
       (Run & run, Tensor w, Tensor s, Tensor choice, Tensor selected,
        std::span<const int64_t> scopes),
       (run, w, s, choice, selected, scopes))
MOE_OP(host, void, weigh_over_tokens_backward_acc,
       (Run & run, Tensor ds, Tensor dw, Tensor w, Tensor choice, Tensor selected,
        std::span<const int64_t> scopes),
       (run, ds, dw, w, choice, selected, scopes))
MOE_OP(device, void, weigh_one_forward, (Run & run, Tensor w, Tensor selected), (run, w, selected))
MOE_OP(device, void, weigh_one_plus_forward,
       (Run & run, Tensor w, Tensor s, Tensor scale, Tensor choice, Tensor selected),
       (run, w, s, scale, choice, selected))
MOE_OP(device, void, weigh_one_plus_backward_acc,
       (Run & run, Tensor ds, Tensor dw, Tensor scale, Tensor choice, Tensor selected),
       (run, ds, dw, scale, choice, selected))
MOE_OP(device, void, weigh_one_plus_scale_backward,
       (Run & run, Param& scale, Tensor dw, Tensor s, Tensor choice, Tensor selected),
       (run, scale, dw, s, choice, selected))
MOE_OP(device, void, scale_by_expert_forward,
       (Run & run, Tensor y, Tensor w, Tensor scale, Tensor choice), (run, y, w, scale, choice))
MOE_OP(device, void, scale_by_expert_backward,
       (Run & run, Param& scale, Tensor dy, Tensor w, Tensor choice, Tensor selected),
       (run, scale, dy, w, choice, selected))
MOE_OP(device, void, weigh_kept_forward, (Run & run, Tensor w, Tensor kept), (run, w, kept))
MOE_OP(device, void, weigh_kept_backward, (Run & run, Tensor dw, Tensor w, Tensor kept),
       (run, dw, w, kept))
MOE_OP(host, void, weigh_zero_experts_forward,
       (Run & run, Tensor zero, Tensor rows, Tensor choice, Tensor kept, Tensor w, int64_t first),
       (run, zero, rows, choice, kept, w, first))
MOE_OP(host, void, weigh_zero_experts_backward_acc,
       (Run & run, Tensor dw, Tensor dzero, Tensor choice, Tensor kept, int64_t first),
       (run, dw, dzero, choice, kept, first))
MOE_OP(device, void, slopes_of_counts,
       (Run & run, std::span<double> slopes, Tensor counts, std::span<const int64_t> other,
        double whole),
       (run, slopes, counts, other, whole))
MOE_OP(device, void, slopes_forward,
       (Run & run, Tensor sum, const TokenShares& p, std::span<const int64_t> bounds,
        std::span<const double> slopes),
       (run, sum, p, bounds, slopes))
MOE_OP(device, void, slopes_backward_acc,
       (Run & run, Tensor ds, Tensor dw, const TokenShares& p, std::span<const int64_t> bounds,
        std::span<const double> slopes, double coef),
       (run, ds, dw, p, bounds, slopes, coef))
MOE_OP(device, RoutingPlan, make_plan,
       (Run & run, Tensor choice, Tensor kept, Tensor w, int64_t experts),
       (run, choice, kept, w, experts))
MOE_OP(device, void, spread_rows, (Run & run, Tensor dw, Tensor dweight, const RoutingPlan& plan),
       (run, dw, dweight, plan))
MOE_OP(device, void, count_pairs,
       (Run & run, Tensor counts, Tensor choice, Tensor selected, int64_t columns),
       (run, counts, choice, selected, columns))
MOE_OP(device, void, count_pairs_acc,
       (Run & run, Tensor counts, Tensor choice, Tensor selected, int64_t columns),
       (run, counts, choice, selected, columns))
