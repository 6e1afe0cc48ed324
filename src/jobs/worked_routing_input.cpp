#include "jobs/worked_routing_input.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace moe {
namespace {

// Arrays of numbers out of an object; a size of -1 takes any that is above 0.
class Numbers {
 public:
  Numbers(const JsonReader& from, Arena& memory) : from_(from), memory_(memory) {}

  Tensor matrix(const char* key, int64_t rows, int64_t cols) const {
    const Json& value = array(from_.value(key), key, rows);
    rows = static_cast<int64_t>(value.size());
    Tensor out;
    for (int64_t i = 0; i < rows; ++i) {
      const std::string name = fmt::format("\"{}\"[{}]", key, i);
      const Json& line = array(value[static_cast<size_t>(i)], name, cols, true);
      cols = static_cast<int64_t>(line.size());
      if (out.empty()) out = memory_.alloc(DType::f32, {rows, cols});
      fill(out.row<float>(i), line, name);
    }
    return out;
  }
  Tensor vector(const char* key, int64_t size) const {
    const Json& value = array(from_.value(key), key, size);
    Tensor out = memory_.alloc(DType::f32, {static_cast<int64_t>(value.size())});
    fill(out.as<float>(), value, fmt::format("\"{}\"", key));
    return out;
  }
  Tensor vector_or(const char* key, int64_t size, float otherwise) const {
    if (from_.has(key)) return vector(key, size);
    Tensor out = memory_.alloc(DType::f32, {size});
    std::fill_n(out.as<float>(), size, otherwise);
    return out;
  }
  Tensor vector_or_zeros(const char* key, int64_t size) const { return vector_or(key, size, 0); }
  std::vector<int64_t> whole(const char* key, int64_t size, int64_t low) const {
    array(from_.value(key), key, size);
    const auto out = from_.get<std::vector<int64_t>>(key);
    for (size_t i = 0; i < out.size(); ++i)
      if (out[i] < low || out[i] > INT32_MAX)
        fail("{}: \"{}\"[{}] is {}, it must be between {} and {}", from_.where(), key, i, out[i],
             low, INT32_MAX);
    return out;
  }

 private:
  const Json& array(const Json& value, const std::string& name, int64_t size,
                    bool quoted = false) const {
    const std::string shown = quoted ? name : fmt::format("\"{}\"", name);
    if (!value.is_array())
      fail("{}: {} must be an array{}", from_.where(), shown, quoted ? " of numbers" : "");
    if (value.empty()) fail("{}: {} is empty", from_.where(), shown);
    if (size >= 0 && static_cast<int64_t>(value.size()) != size)
      fail("{}: {} has {} entries, {} are needed", from_.where(), shown, value.size(), size);
    return value;
  }
  void fill(float* out, const Json& values, const std::string& name) const {
    for (size_t i = 0; i < values.size(); ++i) {
      const Json& value = values[i];
      if (!value.is_number() || !(std::abs(value.get<double>()) <= FLT_MAX))
        fail("{}: {}[{}] must be a finite number of 32 bits", from_.where(), name, i);
      out[i] = static_cast<float>(value.get<double>());
    }
  }

  const JsonReader& from_;
  Arena& memory_;
};

void set(Param& param, Tensor value, Arena& memory) {
  param.value = value;
  param.grad = value.rank == 2 ? memory.alloc_zeroed(DType::f32, {value.rows(), value.cols()})
                               : memory.alloc_zeroed(DType::f32, {value.numel()});
}

// The matrices that make logits of x.
void read_logit_params(RouteInput& g, const JsonReader& from, const Numbers& numbers,
                       const RoutingSpec& spec) {
  LogitParams& logit = g.router.logit;
  set(logit.weight, numbers.matrix("weight", spec.experts, g.x.cols()), g.memory);
  const auto* linear = std::get_if<LinearLogits>(&spec.logits);
  if (linear && linear->bias)
    set(logit.bias, numbers.vector_or_zeros("logit_bias", spec.experts), g.memory);
  if (!linear && from.has("up_weight"))
    set(logit.up, numbers.matrix("up_weight", spec.experts, g.x.cols()), g.memory);
}

// The numbers that a choice is made from.
void read_scored(RouteInput& g, const JsonReader& from, const Numbers& numbers,
                 const RoutingSpec& spec) {
  const bool learned = std::holds_alternative<LearnedNoise>(spec.noise);
  if (from.has("x")) {
    if (from.has("logits"))
      fail("{}: \"x\" and \"logits\" exclude each other; give one of them", from.where());
    g.x = numbers.matrix("x", -1, -1);
    g.tokens = g.x.rows();
    read_logit_params(g, from, numbers, spec);
    if (from.has("noise_weight")) {
      if (!learned)
        fail("{}: \"noise_weight\" has no meaning for stages without learned noise; leave it out",
             from.where());
      set(g.router.noise, numbers.matrix("noise_weight", spec.experts, g.x.cols()), g.memory);
    }
  } else {
    g.logits = numbers.matrix("logits", -1, spec.experts);
    g.tokens = g.logits.rows();
  }
  if (from.has("noise")) g.noise = numbers.matrix("noise", g.tokens, spec.experts);
  if (from.has("sigma")) {
    if (g.noise.empty())
      fail("{}: \"sigma\" is the scale of \"noise\", which is missing", from.where());
    if (g.router.noise.present())
      fail("{}: \"sigma\" and \"noise_weight\" both give the noise's scale; leave one out",
           from.where());
    g.sigma = numbers.matrix("sigma", g.tokens, spec.experts);
  }
}

void read_selection(RouteInput& g, const JsonReader& from, const Numbers& numbers,
                    const RoutingSpec& spec) {
  if (selection_bias(spec.select)) {
    g.router.bias.value = numbers.vector_or_zeros("bias", spec.experts);
  } else if (from.has("bias")) {
    fail(
        "{}: \"bias\" has no meaning for stages without a selection bias; leave it out, or take "
        "deepseek-v3",
        from.where());
  }
  if (has_expert_scale(spec.weigh))
    set(g.router.scale, numbers.vector_or("scale", spec.experts, first_expert_scale(spec.weigh)),
        g.memory);
  if (std::holds_alternative<ThresholdChoice>(spec.select))
    g.router.threshold.value = numbers.vector("threshold", spec.experts);
  else if (from.has("threshold"))
    fail(
        "{}: \"threshold\" has no meaning here; only expert choice evaluated by thresholds reads "
        "it",
        from.where());
}

// Randomness: nothing is drawn unless it is asked for.
void read_draw(RouteInput& g, const JsonReader& from, const RoutingSpec& spec, uint64_t seed) {
  if (from.has("seed")) seed = static_cast<uint64_t>(from.get_in<int64_t>("seed", 0, INT64_MAX));
  if (!from.get<bool>("draw", false)) return;
  g.key = RngKey::from_seed(seed);
  if (std::holds_alternative<NoNoise>(spec.noise) || !g.noise.empty()) return;
  if (g.x.empty())
    fail(
        "{}: \"draw\" with noise on the router's input or logits needs \"x\" and \"weight\" "
        "instead of \"logits\", or \"noise\"",
        from.where());
  if (std::holds_alternative<LearnedNoise>(spec.noise) && !g.router.noise.present())
    fail("{}: \"draw\" with learned noise needs \"noise_weight\"", from.where());
}

}  // namespace

void read_route_input(RouteInput& g, const JsonReader& from, const RoutingSpec& spec,
                      uint64_t seed) {
  const Numbers numbers(from, g.memory);
  g.experts = spec.experts;
  const bool scored = needs_logits(spec.select);
  if (scored) {
    read_scored(g, from, numbers, spec);
  } else {
    for (const char* key : {"logits", "x", "coef", "dweights"})
      if (from.has(key))
        fail(
            "{}: \"{}\" has no meaning for hash routing, which looks at \"ids\" only; leave it out",
            from.where(), key);
    g.tokens = static_cast<int64_t>(numbers.whole("ids", -1, 0).size());
  }
  if (from.has("ids")) {
    const auto ids = numbers.whole("ids", g.tokens, 0);
    g.ids.assign(ids.begin(), ids.end());
  }
  if (from.has("sequences")) {
    g.bounds = {0};
    for (const int64_t length : numbers.whole("sequences", -1, 1))
      g.bounds.push_back(g.bounds.back() + length);
    if (g.bounds.back() != g.tokens)
      fail("{}: \"sequences\" add up to {} tokens, there are {}", from.where(), g.bounds.back(),
           g.tokens);
  }
  if (from.has("step_counts")) g.step_counts = numbers.whole("step_counts", g.experts, 0);
  read_selection(g, from, numbers, spec);
  read_draw(g, from, spec, seed);
  if (from.has("coef")) {
    const JsonReader coef = from.object("coef");
    each_loss(g.coef, [&](const char* name, float& x) {
      x = static_cast<float>(coef.get_in<double>(name, -FLT_MAX, FLT_MAX, 0));
    });
    coef.refuse_unknown();
    g.wants_gradient = true;
  }
  if (from.has("dweights")) {
    g.dweights = &from.value("dweights");
    g.wants_gradient = true;
  }
  from.refuse_unknown();
}

}  // namespace moe
