// The walk: layer by layer over the calibration text, every layer at the inputs that the layers
// already carved give it, one layer's weights in f32 and its activations in memory at a time.
#include "convert/carve.h"

#include <algorithm>
#include <cmath>

#include "convert/carve_steps.h"
#include "convert/widened.h"
#include "core/clock.h"
#include "core/error.h"
#include "model/norm_places.h"

namespace moe {
namespace {

// The result's parameters that are the dense model's: views.
void view_what_stays(Assembly& to, const Model& dense) {
  const bool by_neuron = to.model().config().by_neuron();
  for (Param* param : to.model().params())
    if (param->part == Part::experts && by_neuron && param->kind != ParamKind::down)
      to.view(*param, source_of(*param, dense, Part::dense_ffn));
    else if (param->part != Part::router && param->part != Part::experts &&
             param->part != Part::shared)
      to.view(*param, source_of(*param, dense));
}

double norm_of(Run& run, Tensor x) { return std::sqrt(ops::sum_squares(run, x)); }

// The text as one batch.
struct Calibration {
  std::vector<int32_t> positions;
  std::vector<int64_t> bounds;
  Batch batch;

  Calibration(std::span<const int32_t> ids, const CarveOptions& o)
      : positions(static_cast<size_t>(calibration_tokens(o))) {
    for (int64_t w = 0; w <= o.windows; ++w) bounds.push_back(w * o.window);
    for (size_t i = 0; i < positions.size(); ++i)
      positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % o.window);
    batch = {ids.first(positions.size()), positions, bounds};
  }
};

class Walk {
 public:
  Walk(Run& run, Model& dense, Assembly& carved, const Calibration& text,
       const CarveOptions& options, const CarveStages& stages)
      : run_(run),
        dense_(dense),
        assembly_(carved),
        options_(options),
        stages_(stages),
        spec_(eval_spec(carved.model().config().routing)),
        pass_{.batch = text.batch, .routing = &spec_, .wanted = {.counts = true}} {
    const int64_t tokens = text.batch.tokens(), width = dense.config().width;
    h_ = run.saved.alloc(DType::f32, {tokens, width});
    u_ = run.saved.alloc(DType::f32, {tokens, width});
    y_ = run.saved.alloc(DType::f32, {tokens, width});
    dense.embed(run, h_, text.batch);
    dense.prepare(run, run.saved, pass_);
    if (!stages.follows_dense()) return;
    dense_h_ = run.saved.alloc(DType::f32, {tokens, width});
    ops::cast(run, dense_h_, h_);
  }

  // A layer whose FFN stays as it is.
  void pass(int64_t i) {
    const ArenaScope scope(run_.saved);
    const Widened wide(run_, dense_, i);
    Block& block = dense_.block(i);
    if (!dense_h_.empty()) dense_block(block, dense_h_, u_);
    dense_block(block, h_, u_);
  }

  CarvedLayer layer(int64_t i) {
    const auto start = Clock::now();
    const ArenaScope scope(run_.saved);
    const Widened wide(run_, dense_, i);
    Block& block = dense_.block(i);
    Tensor dense_sum;  // [N,D] f32, the dense stream with what its FFN adds
    if (!dense_h_.empty()) {
      dense_sum = run_.saved.alloc(DType::f32, {u_.rows(), u_.cols()});
      dense_block(block, dense_h_, dense_sum);
    }
    attend(block, h_);
    Carving c = carving(i, ffn_input(block, h_));
    run_dense(run_, c.a, c.dense);
    if (!std::isfinite(ops::sum_squares(run_, c.a.out)))
      fail(
          "what the FFN of layer {} gives on the calibration text is not finite; a model with such "
          "weights computes nothing, so there is nothing to carve",
          i);
    if (!dense_sum.empty()) aim(c, dense_sum);
    stages_.partition->run(c);
    start_map(c);
    start_router(i);
    stages_.router->run(c);
    const Choices chosen = choose_experts(c);
    c.give();
    stages_.fit->run(c);
    write_experts(c, assembly_, i);
    CarvedLayer measured = measure(c, i, chosen);
    ops::add(run_, u_, u_, y_);
    leave(block, h_, u_);
    for (Param* param : assembly_.model().params())
      if (param->layer == i) param->derived = Derived();  // nobody comes back to it
    measured.seconds = seconds_since(start);
    return measured;
  }

 private:
  // u_ from the block's input.
  void attend(Block& block, Tensor h) {
    ArenaScope scope(run_.saved);
    Block::Saved saved;
    block.forward_attention(run_, u_, h, pass_, saved);
  }
  // What the FFN sees of u_, or, beside attention, of the block's input.
  Tensor ffn_input(Block& block, Tensor h) {
    const Tensor x = run_.saved.alloc(run_.compute, {u_.rows(), u_.cols()}),
                 seen = is_beside(block.placement) ? h : u_;
    Norm& norm = block.placement == NormPlacement::beside ? block.attn_norm : block.ffn_norm;
    Norm::Saved saved;
    if (block.placement == NormPlacement::post) ops::cast(run_, x, seen);
    else norm.forward(run_, x, seen, saved);
    return x;
  }
  // The block's output from the residual stream with what the FFN adds.
  void leave(Block& block, Tensor out, Tensor sum) {
    ArenaScope scope(run_.saved);
    Norm::Saved norm;
    if (block.placement == NormPlacement::post) block.ffn_norm.forward(run_, out, sum, norm);
    else ops::cast(run_, out, sum);
  }
  // The dense block: `h`, its input, becomes its output; `sum` [N,D] is the residual stream with
  // what the FFN adds.
  void dense_block(Block& block, Tensor h, Tensor sum) {
    ArenaScope scope(run_.saved);
    attend(block, h);
    Activations a{.x = ffn_input(block, h)};
    run_dense(run_, a, block.ffn.experts);
    ops::add(run_, sum, u_, a.out);
    leave(block, h, sum);
  }
  // Tokens count relative to their streams: a few of them are a thousand times longer than the rest
  // and would be all that a fit sees.
  void aim(Carving& c, Tensor dense_sum) {
    c.target = run_.saved.alloc(DType::f32, {u_.rows(), u_.cols()});
    c.token_weight.resize(static_cast<size_t>(u_.rows()));
    double sum = 0;
    for (int64_t n = 0; n < u_.rows(); ++n) {
      double square = 0;
      for (int64_t d = 0; d < u_.cols(); ++d) {
        const float end = dense_sum.row<float>(n)[d];
        c.target.row<float>(n)[d] = end - u_.row<float>(n)[d];
        square += static_cast<double>(end) * static_cast<double>(end);
      }
      const double weight = static_cast<double>(u_.cols()) / std::max(square, 1e-20);
      c.token_weight[static_cast<size_t>(n)] = static_cast<float>(weight);
      sum += weight;
    }
    for (float& w : c.token_weight)
      w = static_cast<float>(static_cast<double>(w) * static_cast<double>(u_.rows()) / sum);
  }

  Carving carving(int64_t i, Tensor x) {
    const ModelConfig& c = assembly_.model().config();
    return {.run = run_,
            .options = options_,
            .shape = {c.dense_width, options_.shared, c.routing.experts, c.expert_width},
            .active = options_.active,
            .key = RngKey::from_seed(options_.seed).fold(static_cast<uint64_t>(i)),
            .dense = dense_.block(i).ffn.experts,
            .a = {.x = x},
            .carved = assembly_.model().block(i).ffn,
            .pass = pass_,
            .given = y_};
  }

  void start_router(int64_t i) {
    for (Param* param : assembly_.model().params())
      if (param->layer == i && is_sketch(*param))
        assembly_.own(*param, "sketch", 0, sketch_type(assembly_.model().config(), *param));
    assembly_.start_routers(i);
  }

  CarvedLayer measure(const Carving& c, int64_t i, const Choices& chosen) {
    CarvedLayer out{.layer = i,
                    .active = c.active,
                    .shared_mass = chosen.shared_mass,
                    .agreement = chosen.agreement};
    const Tensor gap = run_.saved.alloc(DType::f32, {c.tokens(), y_.cols()});
    for (int64_t r = 0; r < c.tokens(); ++r)
      for (int64_t d = 0; d < y_.cols(); ++d)
        gap.row<float>(r)[d] = y_.row<float>(r)[d] - c.a.out.row<float>(r)[d];
    out.error = norm_of(run_, gap) / std::max(norm_of(run_, c.a.out), 1e-30);
    const auto [least, most] = std::minmax_element(chosen.counts.begin(), chosen.counts.end());
    const double even =
        static_cast<double>(c.tokens() * c.active) / static_cast<double>(c.shape.experts);
    out.largest_load = static_cast<double>(*most) / even;
    out.smallest_load = static_cast<double>(*least) / even;
    return out;
  }

  Run& run_;
  Model& dense_;
  Assembly& assembly_;
  const CarveOptions& options_;
  const CarveStages& stages_;
  RoutingSpec spec_;
  Pass pass_;
  Tensor h_, u_, y_;  // [N,D] f32: the carved model's stream, after attention, what its FFN gives
  Tensor dense_h_;    // [N,D] f32: the dense model's stream; absent unless a stage follows it
};

}  // namespace

CarveResult carve(Run& run, Model& dense, std::span<const int32_t> ids, const CarveOptions& options,
                  const CarveHooks& hooks) {
  check_carve(dense.config(), options);
  const int64_t wanted = calibration_tokens(options);
  if (std::ssize(ids) < wanted)
    fail(
        "the calibration text has {} tokens, and {} windows of {} need {}; give a longer text or "
        "take fewer @windows",
        ids.size(), options.windows, options.window, wanted);
  const CarveStages stages = carve_stages(options);
  CarveResult result;
  result.tokens = wanted;
  Assembly assembly(carved_config(dense.config(), options));
  view_what_stays(assembly, dense);
  const Calibration text(ids, options);
  ArenaScope scope(run.saved);
  Walk walk(run, dense, assembly, text, options, stages);
  const ModelConfig& config = assembly.model().config();
  for (int64_t i = 0; std::ssize(result.layers) < config.moe_layer_count();
       ++i) {  // what comes after the last carved layer is read by nobody
    if (!config.is_moe(i)) {
      walk.pass(i);
      continue;
    }
    result.layers.push_back(walk.layer(i));
    if (hooks.on_layer) hooks.on_layer(result.layers.back());
  }
  result.model = assembly.finish(numbers_of(dense));
  return result;
}

}  // namespace moe
