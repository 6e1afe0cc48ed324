#include "analyze/texts/conversion_findings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analyze/pages/markup.h"
#include "core/words.h"

namespace moe {
namespace {

std::string signed_decimal(double x, int digits) {
  const std::string text = decimal(std::abs(x), digits);
  if (!std::isfinite(x)) return text;
  return (x < 0 ? "-" : "+") + text;
}

// Of a perplexity: four digits.
std::string figure(double x) {
  return decimal(x, x >= 9999.5 ? 0 : x >= 999.95 ? 1 : x >= 99.995 ? 2 : 3);
}

std::string rate(double tokens) { return decimal(tokens, tokens < 99.95 ? 1 : 0); }

double loss_change(const Comparison& c) { return c.after.nats_per_token - c.before.nats_per_token; }

// Whether both predict numbers; else nothing can be said of how far apart they are.
bool has_distance(const Comparison& c) {
  return std::isfinite(loss_change(c)) && std::isfinite(c.kl);
}

// Whether the change of the loss is beyond what the windows' spread makes by itself: two standard
// errors. What is no number is within nothing.
bool told_apart(const Comparison& c) {
  return !c.loss_error || !(std::abs(loss_change(c)) <= 2 * *c.loss_error);
}

std::string share_of_before(double before, double after) {
  return before > 0 ? ratio(after / before) : "";
}

void add_distance_findings(std::vector<std::string>& out, const Comparison& c) {
  if (!has_distance(c)) {
    out.push_back(
        fmt::format("A model that predicts no finite numbers cannot be held against another: the "
                    "loss is {} nats a token, {} before.",
                    decimal(c.after.nats_per_token, 4), decimal(c.before.nats_per_token, 4)));
    return;
  }
  if (!told_apart(c))
    out.push_back(
        fmt::format("The change of {} nats a token is within twice its standard error: {} cannot "
                    "tell it from none.",
                    signed_decimal(loss_change(c), 4), counted(c.windows, "window")));
  out.push_back(
      fmt::format("Both find the same token likeliest at {} of the places. The mean divergence is "
                  "{} nats; at one token in a hundred it is {} or more.",
                  fine_percent(c.same_top), compact(c.kl), compact(c.kl_high)));
}

void add_load_finding(std::vector<std::string>& out, const Comparison& c) {
  if (c.after_load.empty()) return;
  const auto less = [](const LayerChoices& a, const LayerChoices& b) {
    return balance_of(a).max_vio < balance_of(b).max_vio;
  };
  const LayerChoices& worst = *std::max_element(c.after_load.begin(), c.after_load.end(), less);
  int64_t dead = 0;
  for (const LayerChoices& l : c.after_load) dead += balance_of(l).dead;
  out.push_back(fmt::format(
      "The least even layer is {}: its busiest expert gets {} the mean load{}.", worst.layer,
      ratio(1 + balance_of(worst).max_vio),
      dead > 0 ? fmt::format("; {} in all get less than a hundredth of it", counted(dead, "expert"))
               : ""));
}

void add_layer_findings(std::vector<std::string>& out, const ConversionReport& r) {
  std::vector<ConvertedLayer> layers = r.layers;
  std::erase_if(layers, [](const ConvertedLayer& l) { return !l.error; });
  if (layers.size() > 1) {
    const auto less = [](const ConvertedLayer& a, const ConvertedLayer& b) {
      return *a.error < *b.error;
    };
    const auto [best, worst] = std::minmax_element(layers.begin(), layers.end(), less);
    out.push_back(
        fmt::format("Layer {} departs most from the FFN it was made of, by {} of its output's "
                    "length; layer {} least, by {}.",
                    worst->layer, percent(*worst->error), best->layer, percent(*best->error)));
  }
  double sum = 0, known = 0;
  for (const ConvertedLayer& l : r.layers)
    if (l.agreement) sum += *l.agreement, ++known;
  if (known > 0)
    out.push_back(
        fmt::format("The routers take {} of the experts that the largest activations would name.",
                    percent(sum / known)));
}

// What became of each of several texts: learned, forgotten, or neither.
std::vector<std::string> text_findings(const ConversionReport& r) {
  std::vector<std::string> out;
  for (const auto& [name, text, c] : texts_of(r)) {
    const double change = loss_change(c);
    const std::string word = !has_distance(c)                ? "in no finite numbers"
                             : !told_apart(c) || change == 0 ? "as before"
                             : change < 0                    ? "better than before"
                                                             : "worse than before";
    std::string kept;
    if (!c.same_choices.empty())
      kept = fmt::format(
          "; its tokens keep {} of their experts",
          fine_percent(std::accumulate(c.same_choices.begin(), c.same_choices.end(), 0.0) /
                       static_cast<double>(c.same_choices.size())));
    out.push_back(
        fmt::format("{}, {}, is predicted {}: perplexity {} against {}, KL {} nats a "
                    "token{}.",
                    name, text, word, figure(c.after.perplexity), figure(c.before.perplexity),
                    compact(c.kl), kept));
    out.back()[0] = 'T';
  }
  return out;
}

}  // namespace

std::string ratio(double x) {
  return std::isfinite(x) ? decimal(x, x >= 99.95   ? 0
                                       : x >= 9.995 ? 1
                                       : x < 0.0995 ? 3
                                                    : 2) +
                                "×"
                          : "n/a";
}

LoadBalance balance_of(const LayerChoices& layer) {
  LoadBalance b;
  const auto total =
      static_cast<double>(std::accumulate(layer.counts.begin(), layer.counts.end(), int64_t{0}));
  if (total == 0) return b;
  const double mean = total / static_cast<double>(layer.counts.size());
  b.max_vio =
      static_cast<double>(*std::max_element(layer.counts.begin(), layer.counts.end())) / mean - 1;
  b.dead = std::count_if(layer.counts.begin(), layer.counts.end(),
                         [&](int64_t n) { return static_cast<double>(n) < mean / 100; });
  return b;
}

std::vector<ComparedRow> prediction_rows(const Comparison& c) {
  std::vector<ComparedRow> out;
  out.push_back({"perplexity", "perplexity", figure(c.before.perplexity),
                 figure(c.after.perplexity),
                 share_of_before(c.before.perplexity, c.after.perplexity)});
  out.push_back({"nats_per_token", "nats a token", decimal(c.before.nats_per_token, 4),
                 decimal(c.after.nats_per_token, 4),
                 signed_decimal(loss_change(c), 4) +
                     (c.loss_error ? " ± " + decimal(*c.loss_error, 4) : "")});
  out.push_back({"bits_per_byte", "bits a byte", decimal(c.before.bits_per_byte, 4),
                 decimal(c.after.bits_per_byte, 4),
                 signed_decimal(c.after.bits_per_byte - c.before.bits_per_byte, 4)});
  out.push_back({"right", "right at the first guess", coordinate(100 * c.before.right) + "%",
                 coordinate(100 * c.after.right) + "%",
                 signed_decimal(100 * (c.after.right - c.before.right), 1) + " points"});
  return out;
}

std::vector<ComparedRow> cost_rows(const ConversionReport& r) {
  std::vector<ComparedRow> out;
  const auto count = [](auto n) { return human_count(static_cast<double>(n)); };
  const auto bytes = [](auto n) { return human_bytes(static_cast<double>(n)); };
  const auto times = [](auto before, auto after) {
    return share_of_before(static_cast<double>(before), static_cast<double>(after));
  };
  if (r.before_speed && r.after_speed) {
    const SpeedUp up = speed_up(*r.before_speed, *r.after_speed);
    out.push_back({"prompt_rate", "prompt, tokens a second", rate(r.before_speed->prompt_rate()),
                   rate(r.after_speed->prompt_rate()), ratio(up.prompt)});
    out.push_back({"decode_rate", "decode, tokens a second", rate(r.before_speed->decode_rate()),
                   rate(r.after_speed->decode_rate()), ratio(up.decode)});
  }
  const ModelCard &b = r.before, &a = r.after;
  out.push_back({"bytes_per_token", "weights read a token", bytes(b.bytes_per_token),
                 bytes(a.bytes_per_token), times(b.bytes_per_token, a.bytes_per_token)});
  out.push_back({"flops_per_token", "FLOPs a token", count(b.flops_per_token),
                 count(a.flops_per_token), times(b.flops_per_token, a.flops_per_token)});
  out.push_back({"weight_bytes", "weights in all", bytes(b.weight_bytes), bytes(a.weight_bytes),
                 times(b.weight_bytes, a.weight_bytes)});
  out.push_back({"parameters", "parameters", count(b.parameters), count(a.parameters),
                 times(b.parameters, a.parameters)});
  out.push_back({"active_parameters", "active for a token", count(b.active_parameters),
                 count(a.active_parameters), times(b.active_parameters, a.active_parameters)});
  return out;
}

std::vector<ComparedRow> compared_rows(const ConversionReport& r) {
  std::vector<ComparedRow> out = prediction_rows(r.figures), costs = cost_rows(r);
  out.insert(out.end(), costs.begin(), costs.end());
  return out;
}

std::string distance_line(const Comparison& c) {
  return fmt::format(
      "KL {} nats a token over the whole vocabulary (median {}, 99th percentile {}, most {}); the "
      "same likeliest token at {} of the places; the probability of the "
      "token that came changes by {} (root mean square)",
      compact(c.kl), compact(c.kl_median), compact(c.kl_high), compact(c.kl_most),
      fine_percent(c.same_top), compact(c.rms_change));
}

std::string subtitle_of(const ConversionReport& r) {
  std::vector<std::string> texts;
  for (const TextView& t : texts_of(r))
    texts.push_back(fmt::format("{}{}: {} of {} tokens",
                                r.others.empty() ? "" : fmt::format("{}, ", t.name), t.text,
                                counted(t.figures.windows, "window"), t.figures.window));
  return fmt::format("{} {}: {}. On {}", r.is_conversion() ? "made of" : "beside", r.before.name,
                     r.after.shape, fmt::join(texts, "; "));
}

std::vector<Fact> facts_of(const ConversionReport& r) {
  std::vector<Fact> facts;
  for (const TextView& t : texts_of(r))
    facts.push_back({r.others.empty() ? "Perplexity" : fmt::format("Perplexity, {}", t.name),
                     figure(t.figures.after.perplexity),
                     fmt::format("{} the {} before",
                                 ratio(t.figures.after.perplexity / t.figures.before.perplexity),
                                 figure(t.figures.before.perplexity))});
  if (r.before_speed && r.after_speed) {
    const SpeedUp up = speed_up(*r.before_speed, *r.after_speed);
    facts.push_back(
        {"Decode", ratio(up.decode),
         fmt::format("{} tokens a second, {} before", rate(r.after_speed->decode_rate()),
                     rate(r.before_speed->decode_rate()))});
    facts.push_back(
        {"Prompt", ratio(up.prompt),
         fmt::format("{} tokens a second, {} before", rate(r.after_speed->prompt_rate()),
                     rate(r.before_speed->prompt_rate()))});
  }
  const auto bytes = [](int64_t n) { return human_bytes(static_cast<double>(n)); };
  if (r.others.empty()) {
    facts.push_back({"Weights read a token",
                     ratio(static_cast<double>(r.after.bytes_per_token) /
                           static_cast<double>(r.before.bytes_per_token)),
                     fmt::format("{}, {} before", bytes(r.after.bytes_per_token),
                                 bytes(r.before.bytes_per_token))});
    facts.push_back({"FLOPs a token", ratio(r.after.flops_per_token / r.before.flops_per_token),
                     fmt::format("{}, {} before", human_count(r.after.flops_per_token),
                                 human_count(r.before.flops_per_token))});
  }
  for (const TextView& t : texts_of(r))
    facts.push_back({r.others.empty() ? "KL to before" : fmt::format("KL to before, {}", t.name),
                     compact(t.figures.kl),
                     fmt::format("nats a token; the same likeliest token at {}",
                                 fine_percent(t.figures.same_top))});
  return facts;
}

std::vector<std::string> findings_of(const ConversionReport& r) {
  if (!r.others.empty()) return text_findings(r);
  const Comparison& c = r.figures;
  std::vector<std::string> out;
  const std::string quality = fmt::format("{} the perplexity ({} against {})",
                                          ratio(c.after.perplexity / c.before.perplexity),
                                          figure(c.after.perplexity), figure(c.before.perplexity));
  if (r.before_speed && r.after_speed) {
    const SpeedUp up = speed_up(*r.before_speed, *r.after_speed);
    out.push_back(fmt::format(
        "It writes tokens at {} the speed of the model before and reads a prompt at {}, at {}.",
        ratio(up.decode), ratio(up.prompt), quality));
    out.push_back(
        fmt::format("For a token it reads {} of the bytes, which would allow {} the speed where "
                    "memory is the limit, and does {} of the arithmetic.",
                    fine_percent(static_cast<double>(r.after.bytes_per_token) /
                                 static_cast<double>(r.before.bytes_per_token)),
                    ratio(static_cast<double>(r.before.bytes_per_token) /
                          static_cast<double>(r.after.bytes_per_token)),
                    fine_percent(r.after.flops_per_token / r.before.flops_per_token)));
  } else {
    out.push_back(fmt::format("It has {}; how fast it is was not measured.", quality));
  }
  add_distance_findings(out, c);
  add_layer_findings(out, r);
  add_load_finding(out, c);
  return out;
}

}  // namespace moe
