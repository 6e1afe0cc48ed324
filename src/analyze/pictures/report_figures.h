// The charts of a report, one figure for each question, drawn from the numbers of
// analyze/data/report.h. The page and the stand-alone pictures show the same.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analyze/data/report.h"
#include "analyze/pictures/svg_chart.h"

namespace moe {

struct Panel {
  std::string heading;  // "layer 3"; empty where the figure has one panel
  Drawing drawing;
  std::string note;  // a sentence below it, or empty
};
struct Figure {
  std::string key, title, line;  // the definition's key; what it is, in one line
  std::vector<Panel> panels;     // none: there is nothing to show
  std::optional<Drawing> scale;  // of colours
};

// With the words of definitions.h and nothing drawn yet.
Figure empty_figure(std::string_view key);

// A definition as a sentence, with where it comes from.
std::string sentence(std::string line, std::string_view source = {});

// What stands in the columns of a map: each expert, or `sliced` those of like load, the busiest
// first.
std::vector<std::vector<int64_t>> columns_by(const std::function<double(int64_t expert)>& load,
                                             int64_t experts, bool sliced);
// What the line of a figure says of such columns.
std::string column_words(int64_t experts, bool sliced);
struct FigureOptions {
  double width = kPanelWidth;
  bool hover = true;
};

// The load of each layer's experts, a row a layer: load(row, expert) is the expert's share.
HeatMap load_map(const std::vector<int64_t>& layers, int64_t experts, bool sliced,
                 const std::function<double(size_t row, int64_t expert)>& load,
                 const FigureOptions&);

// How many experts the charts and texts of a report give a colour: of neurons none.
int64_t coloured_experts(const RoutingReport&, const TrainingHistory*);

// Of a run.
Figure loss_figure(const TrainingHistory&, const FigureOptions&);
// empty where the text is no preference pairs
Figure pairs_figure(const TrainingHistory&, const FigureOptions&);
Figure auxiliary_figure(const TrainingHistory&, const FigureOptions&);
Figure learning_figure(const TrainingHistory&, const FigureOptions&);
Figure max_vio_figure(const TrainingHistory&, const FigureOptions&);
// empty where nothing was dropped
Figure dropped_figure(const TrainingHistory&, const FigureOptions&);
Figure load_over_time_figure(const TrainingHistory&, const FigureOptions&);

// Of texts.
Figure domain_loss_figure(const RoutingReport&, const FigureOptions&);
Figure load_figure(const RoutingReport&, const FigureOptions&);
Figure domain_figure(const RoutingReport&, const FigureOptions&);
Figure coactivation_figure(const RoutingReport&, const FigureOptions&);
Figure vocabulary_figure(const RoutingReport&, const FigureOptions&);
Figure router_figure(const RoutingReport&, const FigureOptions&);
// empty without an earlier checkpoint
Figure saturation_figure(const RoutingReport&, const FigureOptions&);

// The share of a domain's tokens, and of another's choices, that no preference would give.
double even_domain_share(const RoutingReport&);
double even_coactivation(const RoutingReport&);

// Where a layer's figure stands out most; ratio 0 where nothing can.
struct Standout {
  int64_t layer = 0, expert = 0, other = 0;  // other: domain or second expert
  double value = 0, ratio = 0;
};
Standout strongest_domain(const RoutingReport&, const LayerStats&);
std::vector<Standout> strongest_pairs(const RoutingReport&, const LayerStats&, size_t most);

}  // namespace moe
