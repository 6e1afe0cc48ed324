// The charts of the report of a conversion, from the numbers of analyze/data/conversion_report.h. A
// figure without panels has nothing to show.
#pragma once

#include "analyze/data/conversion_report.h"
#include "analyze/pictures/report_figures.h"

namespace moe {

// Perplexity against speed: a point for each conversion of the sweep and one for the model before.
Figure frontier_figure(const ConversionReport&, const FigureOptions&);
Figure prompt_frontier_figure(const ConversionReport&, const FigureOptions&);

// By layer.
Figure error_figure(const ConversionReport&, const FigureOptions&);
// with the choice at random as a level
Figure agreement_figure(const ConversionReport&, const FigureOptions&);
// empty where every layer takes as many experts
Figure active_figure(const ConversionReport&, const FigureOptions&);
Figure drift_figure(const ConversionReport&, const FigureOptions&);
Figure same_choices_figure(const ConversionReport&, const FigureOptions&);
// MaxVio of several texts, before and after; empty of a single one
Figure balance_figure(const ConversionReport&, const FigureOptions&);
// of the model after; of several texts before and after
Figure expert_load_figure(const ConversionReport&, const FigureOptions&);

// What each model takes and gives, the larger of the two as the full length.
Figure speed_figure(const ConversionReport&, const FigureOptions&);

}  // namespace moe
