#include "analyze/pictures/report_pictures.h"

#include <algorithm>

#include "analyze/pictures/conversion_figures.h"
#include "analyze/pictures/report_figures.h"
#include "analyze/pictures/sample_picture.h"

namespace moe {
namespace {

constexpr size_t kMostPanels = 12;
constexpr double kWide = 748;   // as two panels side by side
constexpr double kThird = 250;  // one of three

void add_figure(Pictures& pictures, const std::string& name, const Figure& f, int64_t experts) {
  if (f.panels.empty()) return;
  Picture picture{.title = f.title,
                  .line = sentence(f.line),
                  .panels = {},
                  .scale = f.scale,
                  .columns = f.panels.size() == 3  ? 3
                             : f.panels.size() > 1 ? 2
                                                   : 1,
                  .experts = experts};
  const size_t n = f.panels.size(), shown = std::min(n, kMostPanels);
  for (size_t i = 0; i < shown; ++i) {
    const Panel& p = f.panels[shown < 2 ? 0 : i * (n - 1) / (shown - 1)];
    picture.panels.emplace_back(p.heading, p.drawing);
  }
  pictures.emplace_back(name, standalone_svg(picture));
}

}  // namespace

Pictures report_pictures(const RoutingReport& r, const TrainingHistory* history) {
  Pictures pictures;
  const int64_t experts = coloured_experts(r, history);
  const auto add = [&](const std::string& name, const Figure& f) {
    add_figure(pictures, name, f, experts);
  };
  const FigureOptions panel{.width = r.moe_layers.size() == 3 ? kThird : kPanelWidth,
                            .hover = false},
      wide{.width = kWide, .hover = false};
  const FigureOptions run_panel{
      .width = history && history->layers.size() == 3 ? kThird : kPanelWidth, .hover = false},
      third{.width = kThird, .hover = false};
  if (history) {
    add("loss.svg", loss_figure(*history, wide));
    add("pairs.svg", pairs_figure(*history, third));
    add("losses.svg",
        auxiliary_figure(*history,
                         history->loss_names.size() == 3 ? third : FigureOptions{.hover = false}));
    add("max-vio.svg", max_vio_figure(*history, wide));
    add("dropped.svg", dropped_figure(*history, wide));
    add("load-over-time.svg", load_over_time_figure(*history, run_panel));
  }
  add("domain-loss.svg", domain_loss_figure(r, wide));
  add("load.svg", load_figure(r, wide));
  add("domains.svg", domain_figure(r, panel));
  add("co-activation.svg", coactivation_figure(r, panel));
  add("router.svg", router_figure(r, third));
  add("vocabulary.svg", vocabulary_figure(r, wide));
  add("saturation.svg", saturation_figure(r, wide));
  if (const std::optional<Picture> samples = sample_picture(r))
    pictures.emplace_back("samples.svg", standalone_svg(*samples));
  return pictures;
}

Pictures conversion_pictures(const ConversionReport& r) {
  Pictures pictures;
  const FigureOptions wide{.width = kWide, .hover = false}, half{.hover = false};
  for (const auto& [name, figure] : std::initializer_list<std::pair<const char*, Figure>>{
           {"frontier.svg", frontier_figure(r, wide)},
           {"prompt-frontier.svg", prompt_frontier_figure(r, wide)},
           {"speed.svg", speed_figure(r, half)},
           {"error.svg", error_figure(r, wide)},
           {"agreement.svg", agreement_figure(r, wide)},
           {"drift.svg", drift_figure(r, wide)},
           {"same-choices.svg", same_choices_figure(r, wide)},
           {"max-vio.svg", balance_figure(r, wide)},
           {"load.svg", expert_load_figure(r, wide)}})
    add_figure(pictures, name, figure, 0);
  return pictures;
}

}  // namespace moe
