// Stages of a stranger, and numbers to route by them: the two are parted by a NUL byte. Stages that
// are accepted must be read back the same from what is written; stages that are valid for the
// numbers' experts must route them, and their reply must be JSON.
#include <nlohmann/json.hpp>
#include <string>

#include "fuzz/fuzz.h"
#include "jobs/worked_routing.h"
#include "moe/recipes/recipes.h"
#include "moe/recipes/spec_json.h"

namespace moe::fuzz {
namespace {

constexpr const char* kLogits = R"({"logits": [[2, 1, 0, -1], [1.5, 1.5, 0.5, 0], [3, -1, 2, 0]]})";

std::string written(const CustomStages& s) { return to_json(s.train, s.eval_as_trained).dump(); }

// The text of the stages, complete; empty where they were refused.
std::string read_stages(const std::string& text) {
  std::string complete;
  accept_or_refuse([&] {
    complete = written(parse_stages(text, "fuzz"));
    try {
      demand(written(parse_stages(complete, "written")) == complete);
    } catch (const Error&) {
      demand(false);
    }
  });
  return complete;
}

void route_all(const std::string& stages, const std::string& numbers) {
  const Json input = parse_json(numbers, "numbers");
  RoutingOptions options;
  options.recipe = kCustom;
  options.stages = stages;
  const int64_t experts = route_experts(input, "numbers");
  options.experts = experts > 0 ? experts : 4;
  for (options.top_k = 1; options.top_k <= 2; ++options.top_k) {
    accept_or_refuse(
        [&] { demand(!route(train_spec(options), input, "numbers", 1).dump().empty()); });
    for (const EvalRouting routing :
         {EvalRouting::dropless, EvalRouting::as_trained, EvalRouting::threshold})
      accept_or_refuse([&] { route(eval_spec(options, routing), input, "numbers", 1); });
  }
}

}  // namespace
}  // namespace moe::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moe::fuzz;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t nul = text.find('\0');
  const std::string stages = read_stages(text.substr(0, nul));
  if (!stages.empty())
    accept_or_refuse(
        [&] { route_all(stages, nul == std::string::npos ? kLogits : text.substr(nul + 1)); });
  return 0;
}
