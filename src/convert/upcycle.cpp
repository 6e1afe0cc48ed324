#include "convert/upcycle.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "core/threads.h"
#include "core/words.h"

namespace moe {
namespace {

enum Draw : uint64_t { kRouter, kNoiseOfRouter, kWhich, kNumber };

std::string divisors(int64_t n) {
  std::vector<int64_t> found;
  for (int64_t d = 1; d <= n && found.size() < 12; ++d)
    if (n % d == 0) found.push_back(d);
  return fmt::format("{}", fmt::join(found, ", "));
}

// The sums of the combine weights of `tokens` tokens with these logits: alike, or drawn.
std::vector<double> weight_sums(const RoutingSpec& spec, int64_t tokens, bool drawn, int threads) {
  Run run(threads);
  Router router;
  Router::Saved saved;
  const std::vector<int32_t> ids(static_cast<size_t>(tokens), 0);
  const std::vector<int64_t> bounds = {0, tokens};
  if (has_expert_scale(spec.weigh)) {
    router.scale.value = run.saved.alloc(DType::f32, {spec.experts});
    std::fill_n(router.scale.value.as<float>(), spec.experts, first_expert_scale(spec.weigh));
  }
  if (selection_bias(spec.select))
    router.bias.value = run.saved.alloc_zeroed(DType::f32, {spec.experts});
  if (needs_logits(spec.select)) {
    saved.logits = run.saved.alloc_zeroed(DType::f32, {tokens, spec.experts});
    const RngKey key = RngKey::from_seed(1);
    for (int64_t i = 0; drawn && i < saved.logits.numel(); ++i)
      saved.logits.as<float>()[i] = normal(key, static_cast<uint64_t>(i));
  }
  const RoutingPlan plan =
      router.decide(run, {.batch = {.ids = ids, .bounds = bounds}, .routing = &spec}, saved);
  std::vector<double> sums(static_cast<size_t>(tokens), 0.0);
  for (int64_t r = 0; r < plan.rows(); ++r)
    sums[static_cast<size_t>(plan.token[static_cast<size_t>(r)])] +=
        static_cast<double>(plan.weight.empty() ? 1.0f : plan.weight.as<float>()[r]);
  return sums;
}

// Rounding in the renormalised weights is no reason to scale by 1.0000001.
double without_rounding(double sum) {
  return std::abs(sum - std::round(sum)) < 1e-5 && sum > 0.5 ? std::round(sum) : sum;
}

// Whether a token's weights add up to the same whatever its logits are, as far as a few hundred
// draws tell.
bool sums_are_constant(const RoutingSpec& spec, double sum, int threads) {
  const std::vector<double> sums = weight_sums(spec, 256, true, threads);
  return std::all_of(sums.begin(), sums.end(),
                     [&](double s) { return std::abs(s - sum) <= 1e-5 * std::abs(sum); });
}

std::string why_not_exact(const UpcycleOptions& o, const RoutingSpec& spec, double sum,
                          double scale, int threads) {
  if (o.noise > 0) return "the experts have noise";
  if (!sums_are_constant(spec, sum, threads))
    return fmt::format("the weights of recipe '{}' do not add up to the same for every token",
                       o.routing.recipe);
  if (o.routing.top_k % o.granularity != 0)
    return message(
        "{} of {} experts a copy are chosen, so a token meets parts of copies; take a @top_k that "
        "is a multiple of {}",
        counted(o.routing.top_k, "expert"), o.granularity, o.granularity);
  if (o.granularity > 1 && !std::holds_alternative<TopK>(spec.select))
    return fmt::format(
        "recipe '{}' does not choose by the largest scores of all experts, so it may tear a copy's "
        "experts apart",
        o.routing.recipe);
  const double whole = static_cast<double>(o.granularity) / sum;
  if (std::abs(scale - whole) > 1e-6 * whole)
    return message("@down_scale is {}, and {} would make the weights count as 1", scale, whole);
  return "";
}

// Fills the FFN bank of one layer.
class Bank {
 public:
  Bank(Assembly& assembly, Model& dense, const UpcycleOptions& o, int64_t layer, double scale,
       double sum, int threads)
      : assembly_(assembly),
        dense_(dense),
        o_(o),
        key_(RngKey::from_seed(o.seed).fold(static_cast<uint64_t>(layer))),
        layer_(layer),
        scale_(static_cast<float>(scale)),
        bias_scale_(static_cast<float>(1 / sum)),
        threads_(threads) {}

  void fill() {
    for (Param* to : assembly_.model().params()) {
      if (to->part != Part::experts || to->layer != layer_) continue;
      const Param& from = source_of(*to, dense_, Part::dense_ffn);
      if (to->is_matrix()) matrix(*to, from);
      else vector(*to, from);
    }
  }

 private:
  int64_t shards() const { return o_.granularity; }

  std::string became(float scale) const {
    const int64_t copies = o_.routing.experts / shards();
    std::string text = copies == 1 ? "1 copy" : fmt::format("{} copies", copies);
    if (shards() > 1) text += fmt::format(" of {} shards each", shards());
    if (scale != 1) text += fmt::format(", times {:g}", scale);
    if (o_.noise > 0)
      text += fmt::format(", {:g}% drawn anew from N(0, {:g})", 100 * o_.noise_share, o_.noise);
    return text;
  }

  // Shard j of the dense matrix: rows of gate and up, columns of down, which have to be copied.
  std::vector<Tensor> cut(const Param& from, bool columns) {
    const Tensor whole = from.expert(0);
    const int64_t width = (columns ? whole.cols() : whole.rows()) / shards();
    std::vector<Tensor> parts;
    if (!columns) {
      for (int64_t j = 0; j < shards(); ++j)
        parts.push_back(whole.slice_rows(j * width, (j + 1) * width));
      return parts;
    }
    if (shards() == 1 && scale_ == 1) return {whole};
    const Tensor copies = assembly_.model().allocate(DType::f32, {shards(), whole.rows(), width});
    parallel_for(threads_, whole.rows(), 16, [&](int64_t begin, int64_t end, int) {
      std::vector<float> row(static_cast<size_t>(whole.cols()));
      for (int64_t r = begin; r < end; ++r) {
        copy_numbers(row.data(), whole.slice_rows(r, r + 1));
        for (int64_t i = 0; i < whole.cols(); ++i)
          copies.at(i / width).row<float>(r)[i % width] = scale_ * row[static_cast<size_t>(i)];
      }
    });
    for (int64_t j = 0; j < shards(); ++j) parts.push_back(copies.at(j));
    return parts;
  }

  void matrix(Param& to, const Param& from) {
    const bool columns = to.kind == ParamKind::down;
    const std::vector<Tensor> parts = cut(from, columns);
    const std::string text = became(columns ? scale_ : 1);
    const int64_t before = from.value.numel(), experts = o_.routing.experts;
    if (o_.noise == 0) {
      std::vector<Tensor> all;
      for (int64_t e = 0; e < experts; ++e) all.push_back(parts[static_cast<size_t>(e % shards())]);
      return assembly_.bank(to, all, text, before);
    }
    const Tensor out = assembly_.own(to, text, before);
    const RngKey key = key_.fold(columns ? 2 : to.kind == ParamKind::gate ? 0 : 1);
    parallel_for(threads_, experts, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t e = begin; e < end; ++e) {
        float* x = out.at(e).as<float>();
        copy_numbers(x, parts[static_cast<size_t>(e % shards())]);
        const RngKey which_key = key.fold(static_cast<uint64_t>(e)).fold(kWhich),
                     number_key = key.fold(static_cast<uint64_t>(e)).fold(kNumber);
        for (int64_t i = 0; i < out.at(e).numel(); ++i)
          if (uniform(which_key, static_cast<uint64_t>(i)) < o_.noise_share)
            x[i] = o_.noise * normal(number_key, static_cast<uint64_t>(i));
      }
    });
  }

  void vector(Param& to, const Param& from) {
    const bool of_output = to.kind == ParamKind::down;
    const int64_t each = to.value.cols();
    const float* x = from.value.as<float>();
    const float scale = of_output ? bias_scale_ : 1;
    const Tensor out = assembly_.own(to, "repeated, as the matrices are", from.value.numel());
    for (int64_t e = 0; e < out.shape[0]; ++e)
      for (int64_t i = 0; i < each; ++i)
        out.row<float>(e)[i] = scale * x[of_output ? i : e % shards() * each + i];
  }

  Assembly& assembly_;
  Model& dense_;
  const UpcycleOptions& o_;
  RngKey key_;
  int64_t layer_;
  float scale_, bias_scale_;
  int threads_;
};

// Rows drawn once for all experts of a copy, so that their logits are equal.
void draw_router(Assembly& assembly, const UpcycleOptions& o, int64_t layer, float noise_std) {
  const RngKey key = RngKey::from_seed(o.seed).fold(static_cast<uint64_t>(layer));
  const auto draw = [&](ParamKind kind, float std, uint64_t part) {
    Param* to = assembly.model().find(Part::router, kind, layer);
    if (to == nullptr) return;
    const Tensor out =
        assembly.own(*to, std > 0 ? fmt::format("drawn from N(0, {:g})", std) : "0", 0);
    for (int64_t e = 0; e < out.rows(); ++e)
      for (int64_t i = 0; i < out.cols(); ++i)
        out.row<float>(e)[i] =
            std * normal(key.fold(part), static_cast<uint64_t>(e / o.granularity * out.cols() + i));
  };
  draw(ParamKind::weight, o.router_std, kRouter);
  draw(ParamKind::noise, noise_std, kNoiseOfRouter);
  assembly.start_routers(layer);
}

void check_options(const ModelConfig& dense, const UpcycleOptions& o) {
  if (dense.moe_layer_count() > 0)
    fail_usage(
        "the model routes already: {} of its {} layers have experts; upcycling begins with a dense "
        "model",
        dense.moe_layer_count(), dense.layers);
  if (!find_recipe(o.routing.recipe).has_router())
    fail_usage("recipe '{}' has no router; take one that has (moe recipes lists them)",
               o.routing.recipe);
  if (o.routing.zero_experts > 0)
    fail_usage(
        "zero experts are no copies of an FFN, and beside copies that compute what it did they "
        "would change what the model says; leave @zero_experts out");
  if (o.routing.experts < 2)
    fail_usage("@experts is {}; an MoE layer needs at least 2", o.routing.experts);
  if (o.granularity < 1)
    fail_usage("@granularity is {}; it must be at least 1 (a copy is one expert)", o.granularity);
  if (o.routing.experts % o.granularity != 0)
    fail_usage(
        "@experts {} is no multiple of @granularity {}: every copy of the FFN becomes {} experts",
        o.routing.experts, o.granularity, o.granularity);
  if (dense.dense_width % o.granularity != 0)
    fail_usage("@granularity {} does not divide the FFN's width of {}; these do: {}", o.granularity,
               dense.dense_width, divisors(dense.dense_width));
  if (!(o.noise >= 0) || std::isinf(o.noise))
    fail_usage("@noise is {}; it must be at least 0, and finite", o.noise);
  if (!(o.noise_share > 0 && o.noise_share <= 1))
    fail_usage("@noise_share is {}; it must be above 0 and at most 1", o.noise_share);
  if (o.down_scale && (!(*o.down_scale > 0) || std::isinf(*o.down_scale)))
    fail_usage("@down_scale is {}; it must be above 0, and finite", *o.down_scale);
  o.layers.check(dense.layers);
}

}  // namespace

ModelConfig upcycled_config(const ModelConfig& dense, const UpcycleOptions& o) {
  check_options(dense, o);
  ModelConfig config = without_experts(dense);
  config.routing = o.routing;
  config.expert_width = dense.dense_width / o.granularity;
  o.layers.set(config);
  config.model_type.clear();
  validate(config);
  const RoutingSpec spec = eval_spec(config.routing);
  if (experts_choose(spec.select))
    fail_usage(
        "by recipe '{}' experts choose their tokens, later ones too, which a dense decoder never "
        "did; take a recipe by which tokens choose",
        o.routing.recipe);
  if (!std::holds_alternative<LinearLogits>(spec.logits))
    fail_usage(
        "recipe '{}' scores an expert by a neuron that is its own, and copies have the same ones; "
        "take another, or moe carve",
        o.routing.recipe);
  if (o.granularity > 1 && !needs_logits(spec.select))
    fail_usage(
        "recipe '{}' has no router whose rows could keep the {} experts of a copy together; leave "
        "@granularity out",
        o.routing.recipe, o.granularity);
  return config;
}

int64_t upcycling_bytes(const ModelConfig& dense, const UpcycleOptions& o) {
  const int64_t matrix = dense.width * dense.dense_width, layers = o.layers.count(dense),
                copies = o.routing.experts / o.granularity;
  const int64_t drawn = o.noise > 0 ? (dense.gated ? 3 : 2) * copies * matrix : 0;
  return layers * 4 * (matrix + drawn + o.routing.experts * dense.width);
}

Upcycled upcycle(Model& dense, const UpcycleOptions& o, int threads) {
  const ModelConfig config = upcycled_config(dense.config(), o);
  const RoutingSpec spec = eval_spec(config.routing);
  Upcycled result;
  result.weight_sum = without_rounding(weight_sums(spec, 1, false, threads)[0]);
  result.down_scale = static_cast<double>(o.down_scale.value_or(
      static_cast<float>(static_cast<double>(o.granularity) / result.weight_sum)));
  result.why_not_exact = why_not_exact(o, spec, result.weight_sum, result.down_scale, threads);
  const float noise_std = resolved_recipe(config.routing).zero_init ? 0 : config.init.std;

  Assembly assembly(config);
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.is_moe(i)) {
      Bank(assembly, dense, o, i, result.down_scale, result.weight_sum, threads).fill();
      draw_router(assembly, o, i, noise_std);
    }
  for (Param* to : assembly.model().params())
    if (to->value.empty()) assembly.view(*to, source_of(*to, dense));
  result.model = assembly.finish(numbers_of(dense));
  result.parts = assembly.account();
  return result;
}

}  // namespace moe
