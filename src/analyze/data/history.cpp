#include "analyze/data/history.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "moe/losses/aux_loss.h"

namespace moe {
namespace {

constexpr int64_t kMaxStep = int64_t{1} << 53;
constexpr double kHuge = 1e100;  // sums of so many stay finite

// The sums of a span of steps.
struct Bucket {
  int64_t rows = 0, timed = 0, predicting = 0;  // predicting: those with a "ce"
  double seconds_a_token = 0;                   // of the timed rows
  HistoryPoint sum;  // step, tokens and seconds: of the last row; tokens_per_second is not summed
};

template <class T>
void add(std::vector<T>& to, const std::vector<T>& from) {
  to.resize(std::max(to.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) {
    if constexpr (std::is_same_v<T, double>) to[i] += from[i];
    else add(to[i], from[i]);
  }
}
void divide(std::vector<double>& sums, double by) {
  for (double& x : sums) x /= by;
}

void add(Bucket& to, const Bucket& from) {
  const HistoryPoint& row = from.sum;
  to.rows += from.rows;
  to.timed += from.timed;
  to.predicting += from.predicting;
  to.seconds_a_token += from.seconds_a_token;
  to.sum.step = row.step;
  to.sum.tokens = row.tokens;
  to.sum.seconds = row.seconds;
  to.sum.ce += row.ce;
  to.sum.grad_norm += row.grad_norm;
  to.sum.lr += row.lr;
  if (row.pairs) {
    PairPoint& sum = to.sum.pairs ? *to.sum.pairs : to.sum.pairs.emplace();
    sum = {row.step, sum.loss + row.pairs->loss, sum.margin + row.pairs->margin,
           sum.accuracy + row.pairs->accuracy};
  }
  add(to.sum.losses, row.losses);
  add(to.sum.max_vio, row.max_vio);
  add(to.sum.dropped, row.dropped);
  add(to.sum.load, row.load);
}

HistoryPoint mean(const Bucket& bucket) {
  HistoryPoint p = bucket.sum;
  const auto n = static_cast<double>(bucket.rows);
  p.ce = bucket.predicting > 0 ? p.ce / static_cast<double>(bucket.predicting)
                               : std::numeric_limits<double>::quiet_NaN();
  p.grad_norm /= n;
  p.lr /= n;
  if (p.pairs) p.pairs = {p.step, p.pairs->loss / n, p.pairs->margin / n, p.pairs->accuracy / n};
  // As if all steps had as many tokens, which those of preference pairs have not quite.
  p.tokens_per_second =
      bucket.seconds_a_token > 0 ? static_cast<double>(bucket.timed) / bucket.seconds_a_token : 0;
  divide(p.losses, n);
  divide(p.max_vio, n);
  divide(p.dropped, n);
  for (std::vector<double>& load : p.load) divide(load, n);
  return p;
}

std::vector<std::string> all_losses() {
  std::vector<std::string> names;
  const RoutingLosses losses;
  each_loss(losses, [&](const char* name, float) { names.emplace_back(name); });
  return names;
}

double number(const JsonReader& row, std::string_view key) {
  return row.get_in<double>(key, -kHuge, kHuge, 0);
}

// Absent where the row says nothing of pairs.
std::optional<PairPoint> pairs_of(const JsonReader& row, const std::string& prefix, int64_t step) {
  if (!row.has(prefix + "dpo")) return {};
  return PairPoint{step, number(row, prefix + "dpo"), number(row, prefix + "margin"),
                   number(row, prefix + "accuracy")};
}

class Thinner {
 public:
  void add_row(const JsonReader& row);
  TrainingHistory finish();

 private:
  void add_layers(const JsonReader& row, HistoryPoint& point);
  void widen();

  TrainingHistory history_;
  const std::vector<std::string> losses_ = all_losses();
  std::vector<int64_t> experts_;  // of each MoE layer
  std::vector<Bucket> buckets_;   // bucket i: steps (i * width_, (i + 1) * width_]
  int64_t width_ = 1;
  int64_t last_ = 0;
};

void Thinner::add_row(const JsonReader& row) {
  const auto step = row.get_in<int64_t>("step", 0, kMaxStep);
  if (step < last_)
    fail("{}: step {} comes after step {}; this is no metrics.jsonl of one run", row.where(), step,
         last_);
  last_ = step;
  if (row.has("eval_ce")) history_.eval_ce.emplace_back(step, number(row, "eval_ce"));
  if (const auto pairs = pairs_of(row, "eval_", step)) history_.eval_pairs.push_back(*pairs);
  if (row.has("alarms"))
    for (const JsonReader& alarm : row.objects("alarms"))
      history_.alarms.push_back(
          {step, alarm.get<std::string>("kind"), alarm.get<std::string>("text")});
  if (!row.has("ce") && !row.has("layers")) return;
  // Older versions wrote 0 where nothing was to be predicted.
  const bool predicts = row.has("ce") && row.get<int64_t>("predicted", 1) > 0;
  HistoryPoint point{step,
                     row.get_in<int64_t>("tokens", 0, std::numeric_limits<int64_t>::max(), 0)};
  if (predicts) point.ce = number(row, "ce");
  point.grad_norm = number(row, "grad_norm");
  point.lr = number(row, "lr");
  point.pairs = pairs_of(row, "", step);
  point.seconds = number(row, "seconds");
  const double rate = number(row, "tokens_per_second");
  for (const std::string& name : losses_) point.losses.push_back(number(row, name));
  add_layers(row, point);

  const auto place = [&] { return static_cast<size_t>(std::max<int64_t>(step - 1, 0) / width_); };
  while (place() >= static_cast<size_t>(kHistoryPoints)) widen();
  if (buckets_.size() <= place()) buckets_.resize(place() + 1);
  add(buckets_[place()], {1, rate > 0, predicts, rate > 0 ? 1 / rate : 0, point});
}

// The first row says which layers there are and how many experts; the others must say the same, so
// that means can be taken.
void Thinner::add_layers(const JsonReader& row, HistoryPoint& point) {
  std::vector<int64_t> layers, experts;
  for (const JsonReader& layer : row.objects("layers")) {
    layers.push_back(layer.get_in<int64_t>("layer", 0, std::numeric_limits<int32_t>::max()));
    point.max_vio.push_back(number(layer, "max_vio"));
    point.dropped.push_back(number(layer, "dropped"));
    point.load.push_back(layer.get<std::vector<double>>("load"));
    for (const double share : point.load.back())
      if (!(share >= 0 && share <= 1))
        fail("{}: a load is {}; it is a share of the choices, from 0 to 1", layer.where(), share);
    experts.push_back(static_cast<int64_t>(point.load.back().size()));
  }
  if (buckets_.empty()) {
    history_.layers = layers;
    experts_ = experts;
  }
  if (layers != history_.layers || experts != experts_)
    fail("{}: its MoE layers are not those of the rows before; this is no metrics.jsonl of one run",
         row.where());
}

void Thinner::widen() {
  width_ *= 2;
  const std::vector<Bucket> narrow = std::move(buckets_);
  buckets_.assign((narrow.size() + 1) / 2, {});
  for (size_t i = 0; i < narrow.size(); ++i)
    if (narrow[i].rows > 0) add(buckets_[i / 2], narrow[i]);
}

// Losses that were zero all along were not trained on.
TrainingHistory Thinner::finish() {
  for (const Bucket& bucket : buckets_)
    if (bucket.rows > 0) history_.points.push_back(mean(bucket));
  std::vector<bool> trained(losses_.size());
  for (const HistoryPoint& p : history_.points)
    for (size_t i = 0; i < losses_.size(); ++i) trained[i] = trained[i] || p.losses[i] != 0;
  for (size_t i = 0; i < losses_.size(); ++i)
    if (trained[i]) history_.loss_names.push_back(losses_[i]);
  for (HistoryPoint& p : history_.points) {
    std::vector<double> kept;
    for (size_t i = 0; i < losses_.size(); ++i)
      if (trained[i]) kept.push_back(p.losses[i]);
    p.losses = std::move(kept);
  }
  return std::move(history_);
}

}  // namespace

TrainingHistory parse_history(std::istream& in, const std::string& where) {
  Thinner thinner;
  std::string text;
  for (int64_t line = 1; std::getline(in, text); ++line) {
    const bool cut = in.eof();  // no newline at its end
    if (text.empty()) continue;
    const std::string place = fmt::format("{}, row {}", where, line);
    Json json;
    try {
      json = parse_json(text, place);
    } catch (const Error&) {
      if (cut) break;
      throw;
    }
    thinner.add_row(JsonReader(json, place));
  }
  return thinner.finish();
}

std::optional<TrainingHistory> read_history(const std::string& folder) {
  const std::string path = folder + "/metrics.jsonl";
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read {}; check its permissions", path);
  return parse_history(file, path);
}

}  // namespace moe
