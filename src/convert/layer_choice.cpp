#include "convert/layer_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace moe {
namespace {

int64_t number_of(std::string_view text, std::string_view all) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || n < 0)
    fail_usage("@layers '{}' is neither every:P nor a list such as 1,3,8-11", all);
  return n;
}

}  // namespace

int64_t LayerChoice::count(const ModelConfig& dense) const {
  if (!listed.empty()) return std::ssize(listed);
  int64_t count = 0;
  for (int64_t i = 0; i < dense.layers; i += every) count += dense.has_ffn(i);
  return count;
}

void LayerChoice::check(int64_t layers) const {
  if (every < 1) fail_usage("@layers every:{}: it must be at least 1", every);
  for (int64_t layer : listed)
    if (layer < 0 || layer >= layers)
      fail_usage("@layers: there is no layer {}; the model has layers 0 to {}", layer, layers - 1);
}

void LayerChoice::set(ModelConfig& config) const {
  config.moe_every = every;
  config.dense_first = 0;
  config.moe_layers = listed;
}

LayerChoice parse_layers(const std::string& text) {
  LayerChoice choice;
  if (text.starts_with("every:")) {
    choice.every = number_of(std::string_view(text).substr(6), text);
    return choice;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view entry = std::string_view(text).substr(begin, end - begin);
    const size_t dash = entry.find('-');
    const int64_t first = number_of(entry.substr(0, dash), text),
                  last = dash == std::string_view::npos ? first
                                                        : number_of(entry.substr(dash + 1), text);
    if (last < first || last - first > 100000)
      fail_usage("@layers: '{}' is no range of layers", entry);
    for (int64_t i = first; i <= last; ++i) choice.listed.push_back(i);
    begin = end + 1;
  }
  std::sort(choice.listed.begin(), choice.listed.end());
  choice.listed.erase(std::unique(choice.listed.begin(), choice.listed.end()), choice.listed.end());
  return choice;
}

std::string to_text(const LayerChoice& layers) {
  return layers.listed.empty() ? fmt::format("every:{}", layers.every)
                               : fmt::format("{}", fmt::join(layers.listed, ","));
}

}  // namespace moe
