#include "model/variants.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace moe {
namespace {

constexpr int64_t kMostSteps = 4096;
constexpr uint64_t kBase = 1'000'000'000;  // of a big number's digits, the lowest first

void multiply(std::vector<uint32_t>& x, uint64_t factor) {
  uint64_t carry = 0;
  for (uint32_t& digit : x) {
    const uint64_t value = digit * factor + carry;
    digit = static_cast<uint32_t>(value % kBase);
    carry = value / kBase;
  }
  for (; carry > 0; carry /= kBase) x.push_back(static_cast<uint32_t>(carry % kBase));
}

void divide(std::vector<uint32_t>& x, uint64_t divisor) {
  uint64_t rest = 0;
  for (size_t i = x.size(); i-- > 0;) {
    const uint64_t value = rest * kBase + x[i];
    x[i] = static_cast<uint32_t>(value / divisor);
    rest = value % divisor;
  }
  while (x.size() > 1 && x.back() == 0) x.pop_back();
}

// Plain token choice over these experts: the sizes of a layer, whatever the model's recipe is.
ModelConfig with_experts(ModelConfig c, int64_t experts, int64_t top_k, int64_t expert_width,
                         int64_t shared, int64_t shared_width) {
  c.routing = {};
  c.routing.recipe = kCustom;
  c.routing.stages = "{}";
  c.routing.experts = experts;
  c.routing.top_k = top_k;
  c.expert_width = expert_width;
  c.shared_experts = shared;
  c.shared_width = shared > 0 ? shared_width : 0;
  c.shared_gate = c.shared_gate && shared > 0;
  c.shared_average = c.shared_average && shared > 0;
  c.weigh_inputs = c.shortcut = false;
  return c;
}

DenseTwin dense_twin(const ModelConfig& config, int64_t ffn_width, int64_t context) {
  const ModelConfig c = with_experts(config, 1, 1, ffn_width, 0, 0);
  DenseTwin twin{ffn_width, count_params(c), count_flops(c, context)};
  twin.params.parts[Part::router] = 0;
  twin.flops.router = 0;
  return twin;
}

int64_t shared_units(const ModelConfig& c) { return c.shared_experts * c.shared_width; }

}  // namespace

// C(n, i) = C(n, i-1) (n-i+1) / i, exact at every step.
std::string combinations(int64_t n, int64_t k) {
  if (n < 0 || k < 0 || k > n || n >= int64_t{1} << 32)
    fail("there are no sets of {} among {} experts", k, n);
  k = std::min(k, n - k);
  if (k > kMostSteps) return "";
  std::vector<uint32_t> x = {1};
  for (int64_t i = 1; i <= k; ++i) {
    multiply(x, static_cast<uint64_t>(n - i + 1));
    divide(x, static_cast<uint64_t>(i));
  }
  std::string text = std::to_string(x.back());
  for (size_t i = x.size() - 1; i-- > 0;) text += fmt::format("{:09}", x[i]);
  return text;
}

double log2_combinations(int64_t n, int64_t k) {
  if (n < 0 || k < 0 || k > n) fail("there are no sets of {} among {} experts", k, n);
  const auto log_factorial = [](int64_t x) { return std::lgamma(static_cast<double>(x) + 1); };
  return (log_factorial(n) - log_factorial(k) - log_factorial(n - k)) / std::numbers::ln2;
}

std::vector<Variant> fine_grained_variants(const ModelConfig& c) {
  if (c.moe_layer_count() == 0) return {};
  const RoutingSpec spec = train_spec(c.routing);
  if (experts_choose(spec.select) || !needs_logits(spec.select) || spec.zero_experts > 0 ||
      shared_units(c) % c.expert_width != 0)
    return {};
  // In units of the model's expert width: mN in all and mK met by a token, s of them shared.
  const int64_t own_shared = shared_units(c) / c.expert_width,
                total = c.routing.experts + own_shared, active = c.routing.top_k + own_shared;
  // The coarsest cut that leaves a choice of two, or of one where a token meets one expert only.
  int64_t cut = 1;
  for (int64_t m = 1; m <= active; ++m)
    if (total % m == 0 && active % m == 0 && active / m >= std::min<int64_t>(2, active)) cut = m;
  const bool is_cut = cut > 1;
  const int64_t m = is_cut ? cut : 4, width = c.expert_width * cut;
  if (width % m != 0) return {};
  const int64_t fine = total / cut * m, fine_active = active / cut * m,
                shared = own_shared > 0 ? own_shared * m / cut : 1;
  std::vector<Variant> out = {
      {"conventional", total / cut, active / cut, width, 0, !is_cut && own_shared == 0, {}},
      {"fine-grained", fine, fine_active, width / m, 0, is_cut && own_shared == 0, {}},
      {"fine-grained, shared",
       fine - shared,
       fine_active - shared,
       width / m,
       shared,
       is_cut && own_shared > 0,
       {}}};
  if (fine_active <= shared) out.pop_back();
  if (std::none_of(out.begin(), out.end(), [](const Variant& v) { return v.is_model; }))
    out.insert(
        out.begin(),
        {"as it is", c.routing.experts, c.routing.top_k, c.expert_width, own_shared, true, {}});
  for (Variant& v : out)
    v.params = count_params(
        with_experts(c, v.experts, v.top_k, v.expert_width, v.shared_experts, v.expert_width));
  return out;
}

DenseTwin dense_of_equal_flops(const ModelConfig& c, int64_t context) {
  const int64_t met = c.routing.top_k * c.routing.experts * c.expert_width / c.routing.scored();
  return dense_twin(c, std::max<int64_t>(1, met + shared_units(c)), context);
}

DenseTwin dense_of_equal_params(const ModelConfig& c, int64_t context) {
  return dense_twin(c, c.routing.experts * c.expert_width + shared_units(c), context);
}

}  // namespace moe
