#include "analyze/data/sample_words.h"

#include <algorithm>
#include <map>
#include <optional>

#include "analyze/pages/sample_texts.h"

namespace moe {
namespace {

enum class Kind { word, blank, line_end, sign };

Kind kind_of(std::string_view piece) {
  const auto c = static_cast<unsigned char>(piece[0]);
  if (c == '\n') return Kind::line_end;
  if (c == ' ' || c == '\t' || c == '\r') return Kind::blank;
  return c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
             ? Kind::word
             : Kind::sign;
}

// The tokens [begin, end) of a word, blanks, a line end or signs; those from `first` on decide its
// colour.
struct TextUnit {
  size_t begin, first, end;
};

// The bytes before a character's last are empty pieces and go with it, a single blank with the word
// or signs behind it.
std::vector<TextUnit> units_of(const std::vector<std::string>& pieces) {
  std::vector<TextUnit> units;
  std::optional<Kind> now;
  size_t begin = 0;  // of the character
  for (size_t t = 0; t < pieces.size(); ++t) {
    if (pieces[t].empty()) continue;
    const Kind kind = kind_of(pieces[t]);
    const bool joins = now == Kind::blank && (kind == Kind::word || kind == Kind::sign) &&
                       units.back().end - units.back().begin == 1;
    if (joins) units.back().first = begin;
    else if (!now || kind != *now || kind == Kind::line_end) units.push_back({begin, begin, begin});
    units.back().end = t + 1;
    now = kind;
    begin = t + 1;
  }
  if (!units.empty()) units.back().end = pieces.size();
  return units;
}

std::vector<Choice> choices_between(const SampleText& s, size_t layer, size_t from, size_t to) {
  std::map<int32_t, float> weights;
  for (size_t t = from; t < to; ++t)
    for (const Choice& c : choices_of(s, layer, t))
      weights[c.expert] += c.weight / static_cast<float>(to - from);
  std::vector<Choice> all;
  for (const auto& [expert, weight] : weights) all.push_back({expert, weight});
  std::stable_sort(all.begin(), all.end(),
                   [](const Choice& a, const Choice& b) { return a.weight > b.weight; });
  return all;
}

}  // namespace

SampleText first_tokens(SampleText s, size_t tokens) {
  if (tokens >= s.pieces.size()) return s;
  for (auto& layer : s.experts) layer.resize(layer.size() / s.pieces.size() * tokens);
  for (auto& layer : s.weights) layer.resize(layer.size() / s.pieces.size() * tokens);
  s.nll.resize(std::min(s.nll.size(), tokens));
  s.pieces.resize(tokens);
  return s;
}

SampleText by_words(const SampleText& s) {
  const std::vector<TextUnit> units = units_of(s.pieces);
  SampleText out{.domain = s.domain, .pieces = {}, .nll = {}, .experts = {}, .weights = {}};
  for (const TextUnit& unit : units) {
    std::string& piece = out.pieces.emplace_back();
    double& nll = out.nll.emplace_back(0);
    for (size_t t = unit.begin; t < unit.end; ++t) {
      piece += s.pieces[t];
      if (t < s.nll.size()) nll += s.nll[t];
    }
  }
  for (size_t layer = 0; layer < s.experts.size(); ++layer) {
    std::vector<std::vector<Choice>> choices;
    size_t slots = 1;
    for (const TextUnit& unit : units)
      slots = std::max(
          slots, choices.emplace_back(choices_between(s, layer, unit.first, unit.end)).size());
    out.experts.emplace_back(slots * units.size(), -1);
    out.weights.emplace_back(slots * units.size(), 0.0F);
    for (size_t u = 0; u < units.size(); ++u)
      for (size_t k = 0; k < choices[u].size(); ++k) {
        out.experts.back()[u * slots + k] = choices[u][k].expert;
        out.weights.back()[u * slots + k] = choices[u][k].weight;
      }
  }
  return out;
}

}  // namespace moe
