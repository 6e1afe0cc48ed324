#include "cli/made_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/flags.h"
#include "cli/screen.h"
#include "hub/folder/architectures.h"
#include "model/cost.h"

namespace moe::cli {

void print_parts(const std::vector<PartFate>& parts) {
  size_t width = 4, words = 6;
  for (const PartFate& p : parts)
    width = std::max(width, p.part.size()), words = std::max(words, p.became.size());
  fmt::print("{:<{}}  {:<{}}  {:>9}  {:>9}\n", "part", width, "became", words, "before", "after");
  const auto number = [](int64_t n) {
    return n == 0 ? std::string("-") : human_count(static_cast<double>(n));
  };
  for (const PartFate& p : parts)
    fmt::print("{:<{}}  {:<{}}  {:>9}  {:>9}\n", p.part, width, p.became, words, number(p.before),
               number(p.after));
}

void print_result(const Made& made) {
  const ModelConfig& c = made.config;
  const ParamCount count = count_params(c);
  fmt::print(
      "{}: a model of type {} in {}, {} of {} with {} experts of width {}, {} a token (recipe {}); "
      "{} parameters, {} active for a token\n",
      made.out, architecture_of(c).model_type, name_of(made.type.type.dtype),
      counted(c.moe_layer_count(), "MoE layer"), c.layers, c.routing.experts, c.expert_width,
      c.routing.top_k, c.routing.recipe, human_count(static_cast<double>(count.total())),
      human_count(static_cast<double>(count.active())));
  print_weights(made.type, made.rows);
}

void print_weights(const ResultType& type, const std::vector<ConvertedRow>& rows) {
  const char* between = type.why.starts_with("as ") ? ", " : "; ";
  fmt::print("weights: {}{}{}\n", written_name(type.type), type.why.empty() ? "" : between,
             in_flags(type.why));
  for (const ConvertedRow& row : otherwise_written(rows))
    fmt::print("  {} of {}: {}\n", counted(row.targets, "tensor"), name_of(row.to), row.why);
}

}  // namespace moe::cli
