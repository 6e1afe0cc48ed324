#include "cli/layer_choice.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace moe::cli {
namespace {

int64_t number_of(std::string_view text, std::string_view all) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || n < 0)
    fail_usage("--layers '{}' is neither every:P nor a list such as 1,3,8-11", all);
  return n;
}

}  // namespace

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
    const int64_t first = number_of(entry.substr(0, dash), text), last = dash == std::string_view::npos ? first : number_of(entry.substr(dash + 1), text);
    if (last < first || last - first > 100000) fail_usage("--layers: '{}' is no range of layers", entry);
    for (int64_t i = first; i <= last; ++i) choice.listed.push_back(i);
    begin = end + 1;
  }
  std::sort(choice.listed.begin(), choice.listed.end());
  choice.listed.erase(std::unique(choice.listed.begin(), choice.listed.end()), choice.listed.end());
  return choice;
}

}  // namespace moe::cli
