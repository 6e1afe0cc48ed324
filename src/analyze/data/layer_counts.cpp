#include "analyze/data/layer_counts.h"

#include <algorithm>
#include <cmath>

namespace moe {
namespace {

constexpr double kDeadShare = 0.01;  // of the mean load

double quotient(double part, double whole) { return whole > 0 ? part / whole : 0; }
double quotient(int64_t part, int64_t whole) {
  return quotient(static_cast<double>(part), static_cast<double>(whole));
}

int64_t sum(std::span<const int64_t> counts) {
  int64_t total = 0;
  for (const int64_t c : counts) total += c;
  return total;
}

double max_vio(std::span<const int64_t> counts) {
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  return quotient(most * static_cast<int64_t>(counts.size()), sum(counts)) - 1;
}

double entropy(std::span<const double> shares) {
  double h = 0;
  for (const double q : shares)
    if (q > 0) h -= q * std::log(q);
  return h;
}

// The experts of token n whose flag is set, in choice order.
void experts_of(std::vector<int32_t>& out, const RoutedRows& rows,
                const std::vector<int32_t>& flags, int64_t n) {
  out.clear();
  for (auto i = static_cast<size_t>(n * rows.slots), end = i + static_cast<size_t>(rows.slots);
       i < end; ++i)
    if (flags[i] != 0) out.push_back(rows.choice[i]);
}

size_t at(int64_t row, int64_t cols, int64_t col) { return static_cast<size_t>(row * cols + col); }

}  // namespace

void IdCounts::add(int32_t id, std::span<const int32_t> chosen) {
  if (id < 0) return;
  const auto v = static_cast<size_t>(id);
  if (v >= row_of_.size()) row_of_.resize(v + 1, -1);
  if (row_of_[v] < 0) {
    row_of_[v] = static_cast<int32_t>(occurrences_.size());
    occurrences_.push_back(0);
    counts_.resize(counts_.size() + static_cast<size_t>(experts_));
  }
  const auto row = static_cast<size_t>(row_of_[v]);
  ++occurrences_[row];
  for (const int32_t e : chosen)
    ++counts_[row * static_cast<size_t>(experts_) + static_cast<size_t>(e)];
}

double IdCounts::specialisation() const {
  double total = 0;
  for (const int32_t row : row_of_) {
    if (row < 0) continue;
    const auto first = counts_.begin() + row * experts_;
    total += quotient(int64_t{*std::max_element(first, first + experts_)},
                      occurrences_[static_cast<size_t>(row)]);
  }
  return quotient(total, static_cast<double>(occurrences_.size()));
}

std::vector<std::vector<TokenAffinity>> IdCounts::favourites() const {
  std::vector<std::vector<TokenAffinity>> all(static_cast<size_t>(experts_));
  for (size_t v = 0; v < row_of_.size(); ++v) {
    if (row_of_[v] < 0) continue;
    const int64_t occurrences = occurrences_[static_cast<size_t>(row_of_[v])];
    const auto first = counts_.begin() + row_of_[v] * experts_;
    const auto most = std::max_element(first, first + experts_);  // the lowest of equals
    if (occurrences < kLeastOccurrences || *most == 0) continue;
    all[static_cast<size_t>(most - first)].push_back(
        {static_cast<int32_t>(v), "", occurrences, quotient(int64_t{*most}, occurrences)});
  }
  for (std::vector<TokenAffinity>& list : all) {
    std::stable_sort(list.begin(), list.end(), [](const TokenAffinity& a, const TokenAffinity& b) {
      return a.share != b.share ? a.share > b.share : a.occurrences > b.occurrences;
    });
    if (list.size() > kFavourites) list.resize(kFavourites);
  }
  return all;
}

LayerCounts::LayerCounts(int64_t layer, int64_t experts, int64_t domains, bool token_choice,
                         bool by_neuron)
    : layer_(layer),
      experts_(experts),
      token_choice_(token_choice),
      by_neuron_(by_neuron),
      counts_(static_cast<size_t>(experts)),
      mass_(static_cast<size_t>(experts)),
      domain_tokens_(static_cast<size_t>(domains)),
      domain_counts_(static_cast<size_t>(domains * experts)),
      pairs_(by_neuron ? 0 : static_cast<size_t>(experts * experts)),
      input_(experts),
      target_(experts),
      predicted_(experts) {}

void LayerCounts::add_scores(const RoutedRows& rows, int64_t n, std::span<const int32_t> chosen) {
  const std::span<const float> s(rows.scores.data() + n * experts_, static_cast<size_t>(experts_));
  double total = 0, top = 0, h = 0;
  for (const float x : s) {
    total += x;
    top = std::max<double>(top, x);
  }
  for (const float x : s)
    if (x > 0) h -= x / total * std::log(x / total);
  ++scored_;
  entropy_ += h;
  top_ += top;
  if (!token_choice_ || chosen.empty() || static_cast<int64_t>(chosen.size()) == experts_) return;
  double least = 2, left_out = -1;  // outside [0, 1]: replaced by the first of each
  for (int64_t e = 0; e < experts_; ++e) {
    const double x = s[static_cast<size_t>(e)];
    if (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) least = std::min(least, x);
    else left_out = std::max(left_out, x);
  }
  ++margins_;
  margin_ += least - left_out;
}

void LayerCounts::add_pairs_and_ids(std::span<const int32_t> chosen, const WindowIds& ids,
                                    size_t n) {
  for (const int32_t e : chosen)
    for (const int32_t other : chosen) ++pairs_[at(e, experts_, other)];
  input_.add(ids.input[n], chosen);
  target_.add(ids.target[n], chosen);
  predicted_.add(ids.predicted[n], chosen);
}

void LayerCounts::add(const RoutedRows& rows, const WindowIds& ids, int64_t domain,
                      const RoutedRows* earlier) {
  std::vector<int64_t> window(static_cast<size_t>(experts_));
  std::vector<int32_t> chosen, before;
  std::vector<char> was(static_cast<size_t>(experts_));
  for (int64_t n = 0; n < rows.tokens; ++n) {
    experts_of(chosen, rows, rows.chosen, n);
    for (const int32_t e : chosen) {
      ++window[static_cast<size_t>(e)];
      ++domain_counts_[at(domain, experts_, e)];
    }
    if (!by_neuron_) add_pairs_and_ids(chosen, ids, static_cast<size_t>(n));
    if (!rows.scores.empty()) add_scores(rows, n, chosen);
    if (earlier) {
      experts_of(before, *earlier, earlier->chosen, n);
      for (const int32_t e : before) was[static_cast<size_t>(e)] = 1;
      for (const int32_t e : chosen) shared_ += was[static_cast<size_t>(e)];
      for (const int32_t e : before) was[static_cast<size_t>(e)] = 0;
    }
    int64_t kept = 0;
    for (int64_t i = n * rows.slots; i < (n + 1) * rows.slots; ++i) {
      const auto pair = static_cast<size_t>(i);
      if (rows.kept[pair] == 0) continue;
      ++kept;
      mass_[static_cast<size_t>(rows.choice[pair])] += rows.weights[pair];
      weight_ += rows.weights[pair];
    }
    kept_ += kept;
    unrouted_ += kept == 0;
  }
  compared_ = earlier != nullptr;
  tokens_ += rows.tokens;
  domain_tokens_[static_cast<size_t>(domain)] += rows.tokens;
  for (size_t e = 0; e < window.size(); ++e) counts_[e] += window[e];
  if (sum(window) == 0) return;  // thresholds may send nothing anywhere
  ++windows_;
  window_max_vio_ += max_vio(window);
}

LayerStats LayerCounts::finish() const {
  LayerStats s;
  s.layer = layer_;
  s.counts = counts_;
  const int64_t pairs = sum(counts_);
  double squares = 0;
  for (size_t e = 0; e < counts_.size(); ++e) {
    s.load.push_back(quotient(counts_[e], pairs));
    s.mass.push_back(quotient(mass_[e], weight_));
    squares += static_cast<double>(counts_[e]) * static_cast<double>(counts_[e]);
    s.dead += static_cast<double>(counts_[e]) * static_cast<double>(experts_) <
              kDeadShare * static_cast<double>(pairs);
  }
  const double even = std::log(static_cast<double>(experts_)), h = entropy(s.load);
  if (pairs > 0) {
    s.max_vio = max_vio(counts_);
    s.max_vio_batch = window_max_vio_ / static_cast<double>(windows_);
    s.cv2 = static_cast<double>(experts_) * squares / static_cast<double>(pairs) /
                static_cast<double>(pairs) -
            1;
    s.load_entropy = experts_ > 1 ? h / even : 1;
    s.effective_experts = std::exp(h);
    s.dropped = quotient(pairs - kept_, pairs);
    if (compared_) s.saturation = quotient(shared_, pairs);
  } else {
    s.dead = experts_;
  }
  s.unrouted = quotient(unrouted_, tokens_);
  if (scored_ > 0) {
    s.router_entropy = experts_ > 1 ? entropy_ / static_cast<double>(scored_) / even : 0;
    s.top_score = top_ / static_cast<double>(scored_);
  }
  if (margins_ > 0) s.margin = margin_ / static_cast<double>(margins_);

  const auto domains = static_cast<int64_t>(domain_tokens_.size());
  s.domain = {domains, experts_, std::vector<double>(domain_counts_.size())};
  for (int64_t d = 0; d < domains; ++d)
    for (int64_t e = 0; e < experts_; ++e)
      s.domain(d, e) =
          quotient(domain_counts_[at(d, experts_, e)], domain_tokens_[static_cast<size_t>(d)]);
  if (by_neuron_) return s;
  s.coactivation = {experts_, experts_, std::vector<double>(pairs_.size())};
  for (int64_t i = 0; i < experts_; ++i)
    for (int64_t j = 0; j < experts_; ++j)
      s.coactivation(i, j) = quotient(pairs_[at(i, experts_, j)], counts_[static_cast<size_t>(i)]);

  s.vocabulary_input = input_.specialisation();
  s.vocabulary_target = target_.specialisation();
  s.vocabulary_predicted = predicted_.specialisation();
  s.favourites = input_.favourites();
  return s;
}

}  // namespace moe
