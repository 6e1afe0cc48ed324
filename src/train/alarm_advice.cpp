#include "train/alarm_advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace moe {
namespace {

// A piece of advice; empty where it does not fit the run.
using Try = std::string (*)(const RunFacts&);

// Of a loss that the recipe has: what its source takes where it is off, else more of it.
std::string more_of(const char* name, float now, float usual) {
  if (now <= 0) return fmt::format("{} {:.3g}", field(name), usual);
  return fmt::format("a higher {} (now {:.3g})", field(name), now);
}

std::string more_balance(const RunFacts& f) {
  if (f.routing == nullptr) return "";
  const RoutingOptions& now = f.config.routing;
  const AuxLosses& losses = f.routing->losses;
  const RoutingLosses usual =
      default_options(find_recipe(now.recipe), now.experts, now.top_k, f.config.moe_layer_count())
          .coef;
  if (losses.balance)
    return more_of("balance", now.coef.balance, usual.balance > 0 ? usual.balance : 0.01f);
  if (losses.importance)
    return more_of("importance_loss", now.coef.importance,
                   usual.importance > 0 ? usual.importance : 0.1f);
  if (losses.load) return more_of("load_loss", now.coef.load, usual.load > 0 ? usual.load : 0.1f);
  if (now.recipe != kCustom) return "";
  if (const SelectionBias* bias = selection_bias(f.routing->select))
    return message("a higher rate of the selection bias in @stages (now {:.3g})", bias->rate);
  return marked("a balance loss in @stages");
}

std::string more_z_loss(const RunFacts& f) {
  return f.routing != nullptr && needs_logits(f.routing->select)
             ? more_of("z_loss", f.config.routing.coef.z, 0.001f)
             : "";
}

std::string keep_noise(const RunFacts& f) {
  const bool left_out =
      !f.config.routing.noise &&
      !std::holds_alternative<NoNoise>(resolved_recipe(f.config.routing).train.noise);
  return left_out ? marked("leaving out @no_router_noise") : "";
}

std::string more_room(const RunFacts& f) {
  const auto* buffer =
      f.routing != nullptr ? std::get_if<BufferCapacity>(&f.routing->capacity) : nullptr;
  return buffer != nullptr ? message("a larger @capacity_factor (now {:.3g})", buffer->factor) : "";
}

std::string lower_lr(const RunFacts& f) { return message("a lower @lr (now {:g})", f.options.lr); }

std::string other_lr(const RunFacts& f) {
  return message("another @lr (now {:g}; lower if the loss had jumped, higher if it only crept)",
                 f.options.lr);
}

// A warm-up mends what goes wrong in the first part of a run only.
std::string longer_warmup(const RunFacts& f) {
  const int64_t now = f.options.warmup.value_or(0);
  return f.step <= 100 + 5 * now ? message("a longer @warmup (now {})", now) : "";
}

std::string clip_more(const RunFacts& f) {
  return f.options.clip <= 0 || f.options.clip > 1 ? marked("@clip 1") : "";
}

std::string shuffle(const RunFacts& f) {
  return f.options.shuffle == Shuffle::none
             ? marked("@shuffle epoch, if the text changes its kind here")
             : "";
}

std::vector<Try> tries_of(AlarmKind kind) {
  switch (kind) {
    case AlarmKind::collapsed_router:
    case AlarmKind::one_sided_router:
    case AlarmKind::dead_expert: return {more_balance, keep_noise, lower_lr, longer_warmup};
    case AlarmKind::rising_z: return {more_z_loss, lower_lr};
    case AlarmKind::rising_drops: return {more_balance, more_room, lower_lr};
    case AlarmKind::loss_spike:
    case AlarmKind::diverging_loss: return {shuffle, lower_lr, longer_warmup, clip_more};
    case AlarmKind::stalled_loss: return {other_lr, longer_warmup};
    case AlarmKind::exploding_gradient: return {clip_more, lower_lr, longer_warmup};
  }
  return {};
}

}  // namespace

std::string advice(AlarmKind kind, const RunFacts& facts) {
  std::vector<std::string> parts;
  for (Try suggest : tries_of(kind))
    if (std::string part = suggest(facts); !part.empty()) parts.push_back(std::move(part));
  if (parts.size() < 2) return parts.empty() ? "" : parts[0];
  return fmt::format("{} or {}", fmt::join(parts.begin(), parts.end() - 1, ", "), parts.back());
}

}  // namespace moe
