// The walk: layer by layer over the calibration text, every layer at the inputs that the layers
// already carved give it, one layer's activations in memory at a time.
#include "convert/carve.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "convert/carve_steps.h"
#include "core/error.h"
#include "core/words.h"
#include "model/cost.h"

namespace moe {
namespace {

std::string expert_counts(int64_t n) {
  std::string out;
  for (int64_t e = 2; e <= std::min<int64_t>(n, 256); ++e)
    if (n % e == 0) out += fmt::format("{}{}", out.empty() ? "" : ", ", e);
  return out.empty() ? "nothing" : out;
}

// Everything but the FFNs that are carved.
void copy_rest(Model& to, const Model& from) {
  for (Param* param : to.params()) {
    if (param->part == Part::router || param->part == Part::experts || param->part == Part::shared)
      continue;
    const Param* source = from.find(*param);
    if (source == nullptr || source->value.dtype != DType::f32 || !source->value.dense())
      fail(
          "carving reads a model that was loaded for training, whose weights are f32; \"{}\" is "
          "not",
          param->name);
    std::memcpy(param->value.data, source->value.data, static_cast<size_t>(param->value.bytes()));
    param->touched();
  }
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

// How the choices of a layer compare with those of the largest sums of |hidden|.
class Agreement {
 public:
  explicit Agreement(const Carving& c)
      : c_(c), slices_(c.shape.experts + 1), slice_of_(c.partition.expert_of()) {
    for (int32_t& s : slice_of_) s = s < 0 ? static_cast<int32_t>(c.shape.experts) : s;
  }

  // choice [*,A] of tokens from `first` on
  void see(int64_t first, Tensor choice) {
    // Ranking each neuron of each token would take as long as all the rest.
    const int64_t step = c_.carved.by_neuron ? kEvery : 1, experts = slices_ - 1;
    Activations some;
    const int64_t count = (choice.rows() + step - 1) / step;
    some.hidden = c_.a.hidden.slice_rows(first, first + choice.rows());
    some.hidden.row_bytes *= step;
    some.hidden.shape[0] = count;
    some.up = some.x = some.hidden;
    const std::vector<float> mass = slice_mass(c_.run, some, slice_of_, slices_);
    std::vector<int32_t> order(static_cast<size_t>(experts));
    for (int64_t n = 0; n < count; ++n) {
      const float* m = mass.data() + n * slices_;
      all_ += std::accumulate(m, m + slices_, 0.0);
      shared_ += static_cast<double>(m[experts]);
      std::iota(order.begin(), order.end(), 0);
      const auto cut = order.begin() + c_.active;
      const auto first_is_better = [&](int32_t a, int32_t b) {
        return m[a] != m[b] ? m[a] > m[b] : a < b;
      };
      std::nth_element(order.begin(), cut, order.end(), first_is_better);
      std::vector<bool> best(order.size());
      std::for_each(order.begin(), cut, [&](int32_t e) { best[static_cast<size_t>(e)] = true; });
      const int32_t* chosen = choice.row<int32_t>(n * step);
      for (int64_t k = 0; k < c_.active; ++k) agreed_ += best[static_cast<size_t>(chosen[k])];
    }
    tokens_ += count;
  }
  double share() const {
    return static_cast<double>(agreed_) / static_cast<double>(tokens_ * c_.active);
  }
  double shared_mass() const { return all_ > 0 ? shared_ / all_ : 0; }

 private:
  static constexpr int64_t kEvery = 16;  // tokens of which one is looked at
  const Carving& c_;
  int64_t slices_;
  std::vector<int32_t> slice_of_;
  double all_ = 0, shared_ = 0;
  int64_t agreed_ = 0, tokens_ = 0;
};

class Walk {
 public:
  Walk(Run& run, Model& dense, Model& carved, const Calibration& text, const CarveOptions& options,
       const CarveStages& stages)
      : run_(run),
        dense_(dense),
        carved_(carved),
        options_(options),
        stages_(stages),
        spec_(eval_spec(carved.config().routing)),
        pass_{.batch = text.batch, .routing = &spec_, .wanted = {.counts = true}} {
    const int64_t tokens = text.batch.tokens(), width = dense.config().width;
    h_ = run.saved.alloc(DType::f32, {tokens, width});
    u_ = run.saved.alloc(DType::f32, {tokens, width});
    y_ = run.saved.alloc(DType::f32, {tokens, width});
    dense.embed(run, h_, text.batch);
    dense.set_cos_sin(run, run.saved, pass_);
    if (!stages.follows_dense()) return;
    dense_h_ = run.saved.alloc(DType::f32, {tokens, width});
    ops::cast(run, dense_h_, h_);
  }

  // A layer whose FFN stays as it is.
  void pass(int64_t i) {
    Block& block = dense_.block(i);
    if (!dense_h_.empty()) dense_block(block, dense_h_, u_);
    dense_block(block, h_, u_);
    forget_copies(i);
  }

  CarvedLayer layer(int64_t i) {
    const auto start = std::chrono::steady_clock::now();
    ArenaScope scope(run_.saved);
    Block& block = dense_.block(i);
    Tensor dense_sum;  // [N,D] f32, the dense stream with what its FFN adds
    if (!dense_h_.empty()) {
      dense_sum = run_.saved.alloc(DType::f32, {u_.rows(), u_.cols()});
      dense_block(block, dense_h_, dense_sum);
    }
    attend(block, h_);
    const Tensor x = ffn_input(block);
    Carving c = carving(i, x);
    run_dense(run_, c.a, c.dense);
    if (!dense_sum.empty()) aim(c, dense_sum);
    stages_.partition->run(c);
    write_slices(c);
    stages_.router->run(c);
    stages_.fit->run(c);

    CarvedLayer measured = measure(c, i);
    ops::add(run_, u_, u_, y_);
    leave(block, h_, u_);
    forget_copies(i);
    measured.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return measured;
  }

 private:
  // u_ from the block's input.
  void attend(Block& block, Tensor h) {
    ArenaScope scope(run_.saved);
    Block::Saved saved;
    block.forward_attention(run_, u_, h, pass_, saved);
  }
  // What the FFN sees of u_.
  Tensor ffn_input(Block& block) {
    Tensor x = run_.saved.alloc(run_.compute, {u_.rows(), u_.cols()});
    Norm::Saved norm;
    if (block.placement == NormPlacement::pre) block.ffn_norm.forward(run_, x, u_, norm);
    else ops::cast(run_, x, u_);
    return x;
  }
  // The block's output from the residual stream with what the FFN adds.
  void leave(Block& block, Tensor out, Tensor sum) {
    ArenaScope scope(run_.saved);
    Norm::Saved norm;
    if (block.placement == NormPlacement::pre) ops::cast(run_, out, sum);
    else block.ffn_norm.forward(run_, out, sum, norm);
  }
  // The dense block: `h`, its input, becomes its output; `sum` [N,D] is the residual stream with
  // what the FFN adds.
  void dense_block(Block& block, Tensor h, Tensor sum) {
    ArenaScope scope(run_.saved);
    attend(block, h);
    Activations a{.x = ffn_input(block)};
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
    const ModelConfig& c = carved_.config();
    return {.run = run_,
            .options = options_,
            .shape = {c.dense_width, options_.shared, c.routing.experts, c.expert_width},
            .active = options_.active,
            .key = RngKey::from_seed(options_.seed).fold(static_cast<uint64_t>(i)),
            .dense = dense_.block(i).ffn.experts,
            .a = {.x = x},
            .carved = carved_.block(i).ffn,
            .pass = pass_};
  }

  // What products made of the layer's weights: nobody comes back to it.
  void forget_copies(int64_t i) {
    for (const Model* model : {&dense_, &carved_})
      for (Param* param : model->params())
        if (param->layer == i) param->derived = Derived();
  }

  // y_ becomes the carved output.
  CarvedLayer measure(Carving& c, int64_t i) {
    CarvedLayer out{.layer = i, .active = c.active};
    const int64_t experts = c.shape.experts, tokens = c.tokens();
    std::vector<int64_t> counts(static_cast<size_t>(experts));
    Agreement agreed(c);
    c.forward(y_, [&](int64_t first, const MoeLayer::Saved& saved) {
      const int32_t* own = saved.router.counts.as<int32_t>();
      for (int64_t e = 0; e < experts; ++e) counts[static_cast<size_t>(e)] += own[e];
      agreed.see(first, saved.router.choice);
    });
    Tensor gap = run_.saved.alloc(DType::f32, {tokens, y_.cols()});
    for (int64_t r = 0; r < tokens; ++r)
      for (int64_t d = 0; d < y_.cols(); ++d)
        gap.row<float>(r)[d] = y_.row<float>(r)[d] - c.a.out.row<float>(r)[d];
    out.error = norm_of(run_, gap) / std::max(norm_of(run_, c.a.out), 1e-30);
    out.shared_mass = agreed.shared_mass();
    out.agreement = agreed.share();
    const double even = static_cast<double>(tokens * c.active) / static_cast<double>(experts);
    out.largest_load = static_cast<double>(*std::max_element(counts.begin(), counts.end())) / even;
    out.smallest_load = static_cast<double>(*std::min_element(counts.begin(), counts.end())) / even;
    return out;
  }

  Run& run_;
  Model &dense_, &carved_;
  const CarveOptions& options_;
  const CarveStages& stages_;
  RoutingSpec spec_;
  Pass pass_;
  Tensor h_, u_, y_;  // [N,D] f32: the carved model's stream, after attention, what its FFN gives
  Tensor dense_h_;    // [N,D] f32: the dense model's stream; absent unless a stage follows it
};

}  // namespace

CarveOptions with_shape(const ModelConfig& dense, const CarveOptions& asked, DType weights) {
  if (!find_carve_method(asked.method).by_neuron) return asked;
  CarveOptions o = asked;
  if (!(o.budget > 0 && o.budget <= 1))
    fail_usage(
        "@budget is {}; it is the share of the FFN's bytes that a decoded token reads, above 0 and "
        "at most 1",
        o.budget);
  o.shared = 0;
  o.experts = dense.dense_width;
  o.active = neurons_for(dense, weights, o.budget);
  if (o.active < 1) {
    const auto [row, sketch] = sketch_bytes(dense, weights);
    fail_usage(
        "@budget {}: the sketch alone reads {:.3f} of the bytes of an FFN in {}; give more than "
        "that",
        o.budget, sketch / row, name_of(weights));
  }
  return o;
}

namespace {

void check_neurons(const ModelConfig& dense, const CarveOptions& o) {
  if (!o.router.empty()) fail_usage("method '{}' has its own router; leave @router out", o.method);
  if (dense.ffn_bias)
    fail_usage(
        "this model's FFNs have biases, which method '{}' does not know yet; take another @method",
        o.method);
  if (dense.width % block_of(kSketchType).elements != 0)
    fail_usage("a sketch has rows of whole blocks of {} numbers, and the model's width is {}",
               block_of(kSketchType).elements, dense.width);
}

}  // namespace

void check_carve(const ModelConfig& dense, const CarveOptions& o) {
  carve_stages(o);
  if (dense.moe_layer_count() > 0)
    fail_usage("this model routes already (recipe '{}'); only a dense one is carved",
               dense.routing.recipe);
  if (dense.norm_placement == NormPlacement::output ||
      dense.norm_placement == NormPlacement::both || dense.multipliers.residual != 1)
    fail_usage(
        "this model does not add what its FFNs give as it is, but normalised or times a number; "
        "such a model cannot be carved yet, take one that adds it (llama, mistral, qwen3, "
        "smollm3)");
  if (o.experts < 2) fail_usage("@experts is {}; it must be at least 2", o.experts);
  if (dense.dense_width % o.experts != 0)
    fail_usage("@experts {} does not divide the FFN's width {}; take one of {}", o.experts,
               dense.dense_width, expert_counts(dense.dense_width));
  if (o.shared < 0) fail_usage("@shared is {}; it must be at least 0", o.shared);
  if (o.shared >= o.experts)
    fail_usage("@shared {} leaves none of {} slices to choose from; take at most {}", o.shared,
               o.experts, o.experts - 1);
  if (o.active < 1) fail_usage("@active is {}; a token takes at least 1 expert", o.active);
  if (o.shared + o.active > o.experts)
    fail_usage("@shared {} and @active {} are more than @experts {}; take at most {} active ones",
               o.shared, o.active, o.experts, o.experts - o.shared);
  o.layers.check(dense.layers);
  if (find_carve_method(o.method).by_neuron) check_neurons(dense, o);
  if (o.marks < 1 || o.marks > dense.dense_width)
    fail_usage("@marks is {}; it must be 1 to {}, the width of the FFN", o.marks,
               dense.dense_width);
  if (o.windows < 1 || o.windows > (int64_t{1} << 20))
    fail_usage("@windows is {}; it must be at least 1", o.windows);
  if (o.window < 2 || o.window > (int64_t{1} << 24))
    fail_usage("@window is {}; a calibration sequence needs at least 2 tokens", o.window);
  if (dense.positions == Positions::learned && o.window > dense.context)
    fail_usage("@window is {}, but the model has positions for {} tokens; take @window {}",
               o.window, dense.context, dense.context);
}

ModelConfig carved_config(const ModelConfig& dense, const CarveOptions& o) {
  const CarveStages stages = carve_stages(o);
  const bool by_neuron = find_carve_method(o.method).by_neuron;
  ModelConfig c = dense;
  const int64_t width = dense.dense_width / o.experts;
  c.model_type.clear();
  c.expert_width = width;
  c.shared_experts = o.shared;
  c.shared_width = o.shared > 0 ? width : 0;
  c.shared_gate = false;
  c.expert_down_bias = !dense.ffn_bias && !by_neuron && stages.fit->down_bias;
  o.layers.set(c);
  c.routing.recipe = stages.router->recipe;
  c.routing = default_options(find_recipe(stages.router->recipe), o.experts - o.shared, o.active,
                              c.moe_layer_count());
  return c;
}

double active_ffn_share(const ModelConfig& dense, const CarveOptions& o) {
  const auto carved = static_cast<double>(carved_config(dense, o).moe_layer_count()),
             layers = static_cast<double>(dense.layers);
  return 1 - carved / layers * static_cast<double>(o.experts - o.shared - o.active) /
                 static_cast<double>(o.experts);
}

double share_read(const ModelConfig& dense, const CarveOptions& o, DType weights) {
  const double taken = static_cast<double>(o.shared + o.active) / static_cast<double>(o.experts);
  if (!find_carve_method(o.method).by_neuron) return taken;
  const auto [row, sketch] = sketch_bytes(dense, weights);
  return taken + sketch / row;
}

MemoryNeed carving_need(const ModelConfig& dense, const CarveOptions& o, DType compute) {
  const ModelConfig carved = carved_config(dense, o);
  const ParamCount before = count_params(dense), after = count_params(carved);
  const int64_t n = calibration_tokens(o), d = dense.width, f = dense.dense_width,
                a = compute == DType::bf16 ? 2 : 4;
  const int64_t carved_ffns = after[Part::experts] + after[Part::shared];
  MemoryNeed need;
  need.add("weights", 4 * before.total());
  need.add("new weights", 4 * (after.total() + after.buffers));
  // A layer's attention and FFN, and what was made of it.
  need.add("packed",
           a * (before[Part::attention] + before[Part::dense_ffn] + carved_ffns) / dense.layers);
  const CarveStages stages = carve_stages(o);
  const bool follows = stages.follows_dense();
  const int64_t streams = n * d * 4 * (follows ? 6 : 3),
                dense_ffn = n * (d * a + f * a * (dense.gated ? 3 : 2) + d * 4);
  if (carved.by_neuron()) {
    // of a window: products, logits and scores; choices and their weights; what is computed
    need.add("activations", streams + dense_ffn + n * d * 4 +
                                o.window * (f * (4 * 4 + 3 * a) + o.active * 3 * 4) +
                                o.window / 16 * f * 4);
    need.add("sketch", d * d * (2 * 4 + 2 * 8));
  } else {
    const int64_t experts = (o.experts - o.shared) * carved.expert_width,
                  active = (o.active + o.shared) * carved.expert_width;
    const int64_t marks = n * f / 8, energies = n * f * a,
                  measured =
                      n * d * 4 + n * active * a * (dense.gated ? 3 : 2) + n * o.active * d * 4;
    need.add("activations", streams + dense_ffn + marks + std::max(energies, measured) +
                                n * experts / std::max<int64_t>(1, carved.expert_width) * 8);
  }
  if (stages.fit->run == refit) {  // its features, and its system of a variable a neuron and an
                                   // expert that has a bias, in f32 and solved in double
    const int64_t columns = f + (carved.by_neuron() ? 0 : o.experts + 1);
    need.add("fit", n * columns * a + columns * (columns + d) * (4 + 8) + n * d * (4 + a));
  }
  need.add("kernels", int64_t{8} << 20);
  return need;
}

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
  result.model = std::make_unique<Model>(carved_config(dense.config(), options));
  copy_rest(*result.model, dense);
  const Calibration text(ids, options);
  ArenaScope scope(run.saved);
  Walk walk(run, dense, *result.model, text, options, stages);
  const ModelConfig& config = result.model->config();
  for (int64_t i = 0; std::ssize(result.layers) < config.moe_layer_count();
       ++i) {  // what comes after the last carved layer is read by nobody
    if (!config.is_moe(i)) {
      walk.pass(i);
      continue;
    }
    result.layers.push_back(walk.layer(i));
    if (hooks.on_layer) hooks.on_layer(result.layers.back());
  }
  return result;
}

}  // namespace moe
