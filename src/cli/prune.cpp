// Drops the experts of a Mixture-of-Experts model that do least on a text, and prints the damage.
#include "jobs/prune.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/made_model.h"
#include "cli/screen.h"
#include "cli/verbs.h"

namespace moe::cli {
namespace {

constexpr size_t kListedExperts = 12;

struct Flags {
  PruneJob job;
  bool json = false;
  Given given;
};

std::vector<int64_t> dropped(const PrunedLayer& layer) {
  std::vector<int64_t> gone;
  for (int64_t e = 0; e < static_cast<int64_t>(layer.saliency.size()); ++e)
    if (!std::binary_search(layer.kept.begin(), layer.kept.end(), e)) gone.push_back(e);
  return gone;
}

void print_pruned(const std::vector<PrunedLayer>& layers) {
  fmt::print("{:>5}  {:>16}  {:>15}  experts that go\n", "layer", "of their choices",
             "of their output");
  for (const PrunedLayer& layer : layers) {
    std::vector<int64_t> gone = dropped(layer);
    const size_t count = gone.size();
    if (count > kListedExperts) gone.resize(kListedExperts);
    fmt::print("{:>5}  {:>15.1f}%  {:>14.1f}%  {}{}\n", layer.layer, 100 * layer.lost_choices,
               100 * layer.lost_output, fmt::join(gone, ", "),
               count > kListedExperts ? fmt::format(" and {} more", count - kListedExperts) : "");
  }
}

void print_verified(const PruneReply::Verified& v) {
  const auto change = [&](double now) {
    return fmt::format("{:.4f} ({:+.2f}%)", now, 100 * (now / v.before - 1));
  };
  fmt::print("perplexity on {} ({} of {}): {:.4f} before, {} pruned{}\n", v.text.path,
             counted(v.text.windows, "window"), v.text.rule.window, v.before, change(v.after),
             v.healed ? fmt::format(", {} healed", change(*v.healed)) : "");
}

void print_healed(const Healed& h) {
  std::string last = "without anything to predict";
  if (h.ce && h.kl) last = fmt::format("ce {:.4f} and kl {:.4f} at the last", *h.ce, *h.kl);
  fmt::print("healed: {} ({} tokens), {}\n", counted(h.steps, "step"),
             human_count(static_cast<double>(h.tokens)), last);
}

int run_prune(const Flags& f) {
  check_given(f.job, f.given);
  const PruneReply reply = prune_model(f.job, on_screen());
  if (f.json) {
    print_json(to_json(reply, flag_of));
    return 0;
  }
  print_pruned(reply.layers);
  print_parts(reply.parts);
  print_result(reply);
  if (reply.healed) print_healed(*reply.healed);
  if (reply.verified) print_verified(*reply.verified);
  return 0;
}

}  // namespace

Action add_prune(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list = fields(f->job);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_prune(*f); };
}

}  // namespace moe::cli
