// The multipliers of Falcon-H1 (transformers:falcon_h1/configuration_falcon_h1.py,
// modeling_falcon_h1.py). Two of its keys multiply what attention and a state space see. What that
// comes to, of scores, of what attention gives and of each part that a state space makes of a
// token, is kept and written, and these keys say 1 then.
#include <cmath>

#include "hub/folder/family_parts.h"

namespace moe {
namespace {

constexpr const char *kFactorOfEmbedding = "embedding_multiplier",
                     *kFactorOfSeen = "attention_in_multiplier", *kFactorOfKeys = "key_multiplier",
                     *kFactorOfAttention = "attention_out_multiplier",
                     *kFactorOfScanned = "ssm_in_multiplier", *kFactorsOfScan = "ssm_multipliers",
                     *kFactorOfScan = "ssm_out_multiplier", *kFactorsOfFfn = "mlp_multipliers";
// No product of three of them leaves what a float holds.
constexpr double kMostFactor = 1e12;

double factor_of(const JsonReader& reader, const char* key) {
  return reader.get_in<double>(key, 1 / kMostFactor, kMostFactor);
}

// So many, each 1 where null stands there.
std::vector<double> factors_of(const JsonReader& reader, const char* key, size_t count) {
  need_to_stand(reader, key, "its numbers, or null where each is 1");
  if (!reader.has(key)) return std::vector<double>(count, 1);
  const std::vector<double> all = reader.get<std::vector<double>>(key);
  if (all.size() != count)
    fail("{}: \"{}\" has {} numbers; it must have {}", reader.where(), key, all.size(), count);
  for (const double x : all)
    if (!(x >= 1 / kMostFactor && x <= kMostFactor))
      fail("{}: \"{}\" has {}; each must be {} to {}", reader.where(), key, x, 1 / kMostFactor,
           kMostFactor);
  return all;
}

double root_of_head(const ModelConfig& c) { return std::sqrt(static_cast<double>(c.head_width)); }

}  // namespace

void read_falcon_factors(const JsonReader& reader, ModelConfig& c) {
  Multipliers& m = c.multipliers;
  m.embedding = static_cast<float>(factor_of(reader, kFactorOfEmbedding));
  const double seen = factor_of(reader, kFactorOfSeen),
               scores = seen * seen * factor_of(reader, kFactorOfKeys);
  m.attention = scores == 1 ? 0 : static_cast<float>(scores / root_of_head(c));
  m.attention_out = static_cast<float>(seen * factor_of(reader, kFactorOfAttention));
  const double scanned = factor_of(reader, kFactorOfScanned);
  const std::vector<double> made = factors_of(reader, kFactorsOfScan, m.scan_in.size()),
                            of_ffn = factors_of(reader, kFactorsOfFfn, 2);
  for (size_t i = 0; i < made.size(); ++i) m.scan_in[i] = static_cast<float>(scanned * made[i]);
  m.scan_out = static_cast<float>(factor_of(reader, kFactorOfScan));
  m.ffn_gate = static_cast<float>(of_ffn[0]);
  m.ffn_down = static_cast<float>(of_ffn[1]);
}

void write_falcon_factors(Json& json, const ModelConfig& c) {
  const Multipliers& m = c.multipliers;
  FieldWriter fields(json);
  fields.number(kFactorOfEmbedding, m.embedding, 0);
  fields.number(kFactorOfAttention, m.attention_out, 0);
  fields.number(kFactorOfScan, m.scan_out, 0);
  for (const char* key : {kFactorOfSeen, kFactorOfScanned}) json[key] = 1.0;
  json[kFactorOfKeys] = m.attention > 0 ? static_cast<double>(m.attention) * root_of_head(c) : 1.0;
  json[kFactorsOfScan] = Json::array();
  for (const float x : m.scan_in) json[kFactorsOfScan].push_back(shortest_decimal(x));
  json[kFactorsOfFfn] = {shortest_decimal(m.ffn_gate), shortest_decimal(m.ffn_down)};
}

// With room for what is written as a product, and read again.
std::string why_not_falcon_factors(const Multipliers& m) {
  if (m.residual != 1) return "what its sublayers add has a multiplier";
  constexpr double kMost = kMostFactor / 1e5;
  const float ones[] = {m.embedding,     m.attention > 0 ? m.attention : 1,
                        m.attention_out, m.scan_out,
                        m.ffn_gate,      m.ffn_down};
  const auto fits = [](float x) {
    return static_cast<double>(x) >= 1 / kMost && static_cast<double>(x) <= kMost;
  };
  return std::ranges::all_of(ones, fits) && std::ranges::all_of(m.scan_in, fits)
             ? ""
             : "its multipliers are too small or too large";
}

}  // namespace moe
